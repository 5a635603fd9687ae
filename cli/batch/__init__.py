"""What `llm batch` shows, and how its flags become requests."""
