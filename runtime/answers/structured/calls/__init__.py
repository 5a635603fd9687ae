"""Grammars of tool calls, in the notation of a model's family."""
