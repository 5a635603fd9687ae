"""Structured output: answers that fit a JSON schema, a regular expression, a grammar or a list of choices."""
