"""What `run` and `chat` share: their flags, the prompt with its files, and writing a reply."""
