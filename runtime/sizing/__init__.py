"""What a model takes: bytes of weights and cache, what a token reads and computes, what training costs."""
