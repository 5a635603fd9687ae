"""A batch on the machines of a Ray cluster: `workers.py` hands rows out, `worker.py` answers them there,
`cluster.py` is the one file that knows Ray."""
