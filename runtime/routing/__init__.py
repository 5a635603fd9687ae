"""Two models for one request: the small one answers, and the large one where that seems unsure."""
