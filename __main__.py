"""`python -m kukri`: the command line, as the installed commands `llm` and `kukri` start it."""

from __future__ import annotations

import sys

from .cli.start import main

if __name__ == "__main__":
    sys.exit(main())
