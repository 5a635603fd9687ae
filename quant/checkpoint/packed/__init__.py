"""Readers of checkpoints whose weights are quantised already, one file a packing; `schemes.py` lists them.

The docstring of each file draws the bits; its `read` yields the weights packed that way. Tensor names and
dtypes say which weights are quantised, not the lists of modules in the configuration. A weight becomes blocks
of a GGUF type where one has the same levels and can hold its scales and minimums (`groupwise.py`); otherwise
it becomes 16-bit floats, which hold most packings without rounding (`lossless.py`). The type is chosen when a
checkpoint is opened, from scales and zero points; rows are converted when they are read (`lazy_rows.py`).
"""
