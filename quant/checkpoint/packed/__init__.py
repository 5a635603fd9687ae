"""Checkpoints whose weights are quantised already: one file a packing; `schemes.py` lists them.

Each file is one packing: bits drawn in its docstring, `read` finding what is packed so. Which weights those
are, the tensors tell, not the lists of modules in the configuration. A weight becomes blocks of a GGUF type
where one holds the same grid (`grids.py`), else a float of 16 bits, which holds most exactly (`exact.py`);
that is decided from its scales and zero points when a checkpoint is opened, and done to rows when they are
read (`rows.py`).
"""
