"""The API of Ollama, so that editors and interfaces that were built for it connect."""
