"""What the server shows of how models work: the last steps of the batch, and inspections of prompts."""
