"""How families of models write tool calls: a file for each, and the notations that several of them share."""
