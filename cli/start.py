"""What the installed commands start: an interrupt while the rest is imported ends them quietly, too."""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Import the command line and run it."""
    try:
        from .signals import send_lost_signals_again

        sys.unraisablehook = send_lost_signals_again
        from .main import main as run
    except (KeyboardInterrupt, RuntimeError) as problem:  # the latter: see `signals.as_sent`
        if isinstance(problem, RuntimeError) and not isinstance(problem.__cause__, KeyboardInterrupt):
            raise
        os._exit(EXIT_INTERRUPTED)
    return run()


if __name__ == "__main__":
    sys.exit(main())
