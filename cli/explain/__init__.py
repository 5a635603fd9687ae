"""What `llm explain` shows: a view a file, each with its facts for programs and their drawing for people."""
