"""Text in, text out: opening, placing and loading a model, and `Model` itself."""
