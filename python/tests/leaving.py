"""The end of a program of a test: its own, and not that of the thousand modules that were imported for it. Taking them apart, module by module in Python
and operator by operator in torch's libraries, takes 0.6 s of processor time; a forked process has to copy all that memory for it."""

from __future__ import annotations

import atexit
import ctypes
import sys

#: What Python needs to the last, and what is the program's.
STAY = {"sys", "builtins", "__main__"}
libc = ctypes.CDLL(None)
_kept: dict[str, object] = {}


def first() -> None:
    """Before the imports: what runs at the end comes in the opposite order."""
    atexit.register(_leave)


def last() -> None:
    """After the imports. The program's exit status is kept, what the program itself has made ends as ever, and so does what libraries do at the end
    that it loads."""
    _kept.update((name, module) for name, module in sys.modules.items() if name not in STAY)
    libc.on_exit(libc._exit, None)


def _leave() -> None:
    """Has Python not find the modules. They stay where they are."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
    for name in _kept:
        sys.modules.pop(name, None)
    libc.fflush(None)
