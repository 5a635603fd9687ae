"""The API of OpenAI, which most clients speak: chat, completions, responses, embeddings, models."""
