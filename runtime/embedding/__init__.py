"""Vectors and scores of texts, out of the hidden states of a model: ids in, numbers out."""
