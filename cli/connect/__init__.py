"""A server as a client sees it: what `llm ps` and `llm chat --connect` ask it."""
