"""Whether a process may go on: what fails here ends it, and another process takes its rank."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from .parts import Part

__all__ = ["CUDAHealth", "FaultLimit", "MemoryHealth", "Unhealthy", "default_health"]


class Unhealthy(Exception):
    """The process must not go on."""


class CUDAHealth:
    """Every initialised CUDA device must synchronise within ``timeout`` seconds, twice: the second time brings errors that
    stick to the context."""

    def __init__(self, timeout: float = 30.0) -> None:
        self.timeout = timeout

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return
        failed: list[BaseException] = []

        def synchronise() -> None:
            try:
                for _ in range(2):
                    torch.cuda.synchronize()
            except Exception as err:
                failed.append(err)

        t = threading.Thread(target=synchronise, daemon=True)
        t.start()
        t.join(self.timeout)
        if t.is_alive():
            raise Unhealthy(f"the CUDA device did not synchronise within {self.timeout} s")
        if failed:
            raise Unhealthy(f"the CUDA device: {failed[0]}") from failed[0]


class MemoryHealth:
    """At least ``free`` bytes of host memory must be available, and the process may have grown by at most ``growth`` bytes
    since the first check: a leak at every restart ends in the kernel's killer instead."""

    def __init__(self, free: int = 256 << 20, growth: int = 16 << 30) -> None:
        self.free, self.growth = free, growth
        self.first: int | None = None

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        with open("/proc/meminfo") as f:
            available = next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable"))
        with open("/proc/self/statm") as f:
            resident = int(f.read().split()[1]) * 4096
        self.first = resident if self.first is None else self.first
        if available < self.free:
            raise Unhealthy(f"{available >> 20} MiB of host memory are available, want {self.free >> 20}")
        if resident - self.first > self.growth:
            raise Unhealthy(f"the process has grown by {(resident - self.first) >> 20} MiB over its restarts, at most {self.growth >> 20} are allowed")


class FaultLimit:
    """A process may fail by itself at most ``most`` times: what comes back is better looked for in a fresh one. ``count`` says
    how often it has."""

    def __init__(self, most: int, count: Callable[[], int]) -> None:
        self.most, self.count = most, count

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        if self.count() > self.most:
            raise Unhealthy(f"this process has failed {self.count()} times, at most {self.most} are allowed")


def default_health() -> list[Part]:
    """CUDA and memory."""
    return [CUDAHealth(), MemoryHealth()]
