"""On PYTHONPATH of a process: says how long it took to start, and how much of its time went into imports. For recovery.py.

IMPORTS_TO names a folder; the file ``<pid>`` in it holds when the process began (CLOCK_BOOTTIME), and the seconds of its interpreter's
start and of all outermost imports of its main thread so far.
"""

import builtins
import os
import threading
import time

_plain = builtins.__import__
with open("/proc/self/stat") as _stat:
    _began = int(_stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
_spent = time.clock_gettime(time.CLOCK_BOOTTIME) - _began
_me, _pid, _deep = threading.get_ident(), os.getpid(), False


def _import(*args, **kwargs):
    global _spent, _deep
    if _deep or threading.get_ident() != _me or os.getpid() != _pid:
        return _plain(*args, **kwargs)
    _deep, at = True, time.monotonic()
    try:
        return _plain(*args, **kwargs)
    finally:
        _deep = False
        took = time.monotonic() - at
        if took > 1e-4:  # what is there already is not written down
            _spent += took
            with open(os.path.join(os.environ["IMPORTS_TO"], str(_pid)), "w") as out:
                out.write(f"{_began} {_spent}")


if os.environ.get("IMPORTS_TO"):
    builtins.__import__ = _import
