"""What the installed commands start: an interrupt while the rest is imported ends them quietly, too."""

from __future__ import annotations

import atexit
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
    code = run()
    if code == EXIT_INTERRUPTED:
        # If Ctrl-C came while a string was executed, as making a dataclass does, Python would end the process
        # by the signal instead of with this code, whatever has become of the exception.
        atexit._run_exitfuncs()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
