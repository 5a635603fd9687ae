"""Answers on disk, so that a request that would be answered alike is not computed again."""
