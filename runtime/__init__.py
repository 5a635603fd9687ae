"""Running models: from a name to files, from files to a program, and the machines that run it."""

from __future__ import annotations

import logging

# Without a handler, Python prints the warnings in a library's log to stderr.
logging.getLogger("kukri").addHandler(logging.NullHandler())
