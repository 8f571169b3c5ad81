"""For tests of your own training: break it at places that you name, and ask whether a resumed run is the same run.

:class:`Faults` kills, raises or hangs in a rank, by a seeded plan. :func:`check_resume` trains twice, once in one go and once
through the loss of a process, and names the first thing that differs.
"""

from .check import Different, Resumption, Train, check_resume
from .faults import KINDS, PLACES, Fault, Faults, Injected

__all__ = ["KINDS", "PLACES", "Different", "Fault", "Faults", "Injected", "Resumption", "Train", "check_resume"]
