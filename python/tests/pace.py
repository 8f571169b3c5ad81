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


class Limit:
    """So many seconds of a quiet machine, for what the text says."""

    def __init__(self, seconds: float, what: str, now: float | None = None) -> None:
        self.left, self._what = seconds, what
        self._began = self._last = self._said = time.monotonic() if now is None else now

    def over(self) -> bool:
        """Whether it has passed: to be asked each second. It says on stderr what is waited for."""
        try:
            with open("/proc/loadavg") as f:
                by = slowed(f.read(), os.cpu_count() or 1)
        except OSError:
            by = 1.0
        if text := self.passes(time.monotonic(), by):
            print(text, file=sys.stderr, flush=True)
        return self.left <= 0

    def passes(self, now: float, by: float) -> str:
        """The rule, at a moment."""
        self.left -= (now - self._last) / by
        self._last = now
        if now - self._said < SAYS:
            return ""
        self._said = now
        return f"{now - self._began:.0f} s: waits for {self._what}; a core has {by:.1f} threads to run, and {max(0.0, self.left) * by:.0f} s are left at that"
