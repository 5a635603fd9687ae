"""What `llm bench --serve` does: requests to a server, as many clients send them, and what these wait for."""
