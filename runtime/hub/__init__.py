"""Model names → files on disk: the Hugging Face Hub, the package index, and what is on disk already."""
