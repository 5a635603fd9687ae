"""How long a thread waits for another processor, which may never come."""

from __future__ import annotations

from ...compile.stage import device
from ...ptx import cycles, load_acquire, store_release


@device
def patience_ends(until, soon, patience, errors, report):
    """Of a wait that is not over yet: the cycle at which to ask again (0 at first), or -1 to give up.

    A thread asks for errors after `soon` cycles, and gives up if there are some, or `patience` cycles later;
    the words `errors` of this card and `report` of the host are 1 from then on.
    """
    now = cycles()
    if until == 0:
        until = (now + soon) & -2
    elif now >= until:
        if (until & 1) == 1 or load_acquire(errors) != 0:
            store_release(errors, 1)
            store_release(report, 1)
            until = -1
        else:
            until = (now + patience) | 1
    return until
