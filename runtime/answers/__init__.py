"""Answers: from the tokens of a generation to text, thinking and tool calls."""
