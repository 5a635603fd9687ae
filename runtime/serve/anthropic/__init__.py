"""The API of Anthropic: messages with blocks of text, thinking and tool calls, and counts of their tokens."""
