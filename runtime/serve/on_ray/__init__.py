"""The HTTP application on a Ray cluster: `deployment.py` puts it together, `front.py` takes requests and sees
how their prompts begin, `router.py` chooses a replica by that, and `replica.py` answers."""
