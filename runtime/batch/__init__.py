"""Files of prompts: rows in, answers out, each exactly once however often the run is cut off."""
