"""Vocabularies of pieces without merges, as encoders have them: WordPiece and unigram models."""
