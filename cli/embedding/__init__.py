"""What `llm embed` and `llm rerank` read and write."""
