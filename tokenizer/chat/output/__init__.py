"""What a chat model writes, taken apart while it comes: text, thinking and tool calls.

`formats.py` chooses a format by a model's chat template and vocabulary; the other files know how one family
or another writes its calls. Pure text: no ids, no engine.
"""
