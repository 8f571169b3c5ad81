"""How long tests wait: limits follow what the machine gives, as those of internal/pace do for Go. A second in which two threads want each core counts half."""

from __future__ import annotations

import os
import sys
import time

#: What hangs ends a test at last.
MOST = 10.0
#: How often a test that waits says for what, in seconds.
SAYS = 30.0


def slowed(line: str, cores: int) -> float:
    """How many threads want a core, by a line of /proc/loadavg: the mean of the last minute, and how many want to run at this moment, count both."""
    mean, _, _, running, _ = line.split()
    return min(max(1.0, max(float(mean), float(running.partition("/")[0])) / cores), MOST)


def now() -> float:
    """The same, of this machine at this moment."""
    try:
        with open("/proc/loadavg") as f:
            return slowed(f.read(), os.cpu_count() or 1)
    except OSError:
        return 1.0


def patient(seconds: float) -> float:
    """So many seconds of a quiet machine as they are on this one now: for a limit that is set once, and can't be asked each second as :class:`Limit` is. In `make test` others come
    to want the cores later, so it is twice that at least."""
    return seconds * max(2.0, now())


class Limit:
    """So many seconds of a quiet machine, for what the text says."""

    def __init__(self, seconds: float, what: str, began: float | None = None) -> None:
        self.left, self._what = seconds, what
        self._began = self._last = self._said = time.monotonic() if began is None else began

    def over(self) -> bool:
        """Whether it has passed: to be asked each second. It says on stderr what is waited for."""
        if text := self.passes(time.monotonic(), now()):
            print(text, file=sys.stderr, flush=True)
        return self.left <= 0

    def passes(self, at: float, by: float) -> str:
        """The rule, at a moment."""
        self.left -= (at - self._last) / by
        self._last = at
        if at - self._said < SAYS:
            return ""
        self._said = at
        return f"{at - self._began:.0f} s: waits for {self._what}; a core has {by:.1f} threads to run, and {max(0.0, self.left) * by:.0f} s are left at that"
