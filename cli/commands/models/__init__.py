"""Commands about the models on this machine: which there are, what is in them, fetching, converting."""
