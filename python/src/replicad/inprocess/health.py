"""Whether a process may go on: what fails here ends it, and another process takes its rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from . import memory
from .parts import Part, accelerator

__all__ = ["CUDAHealth", "FaultLimit", "MemoryHealth", "Unhealthy", "default_health"]


class Unhealthy(Exception):
    """The process must not go on."""


class CUDAHealth:
    """Each CUDA device of which the process holds a context must synchronise within ``timeout`` seconds, twice: the second time brings errors that
    stick to the context. No other device is touched: that would begin a context there, of some 500 MB."""

    def __init__(self, timeout: float = 30.0) -> None:
        self.timeout = timeout

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        if (device := accelerator()) is None:
            return
        failed: dict[int, BaseException] = {}

        def check(index: int) -> None:
            try:
                for _ in range(2):
                    device.synchronise(index)
            except Exception as err:
                failed[index] = err

        checks = {i: threading.Thread(target=check, args=(i,), daemon=True) for i in device.used()}
        for t in checks.values():
            t.start()
        until = time.monotonic() + self.timeout
        for t in checks.values():
            t.join(max(0.0, until - time.monotonic()))
        hung = [i for i, t in checks.items() if t.is_alive()]
        said = [f"CUDA device {i} did not synchronise within {self.timeout} s" for i in hung] + [f"CUDA device {i}: {err}" for i, err in sorted(failed.items())]
        if said:
            raise Unhealthy("; ".join(said)) from next(iter(failed.values()), None)


class MemoryHealth:
    """At least ``free`` bytes of host memory must be available, and the process may have grown by at most ``growth`` bytes since the first check: a
    leak at every restart ends in the kernel's killer instead.

    On each device of which the process holds a context, ``device_free`` bytes must be available, in torch's cache or outside of it. What the process's
    tensors take there may have grown by ``device_growth`` bytes since the first check: a block's tensors are gone by then, so what grows is a leak."""

    def __init__(self, free: int = 256 << 20, growth: int = 16 << 30, device_free: int = 256 << 20, device_growth: int = 4 << 30) -> None:
        self.free, self.growth, self.device_free, self.device_growth = free, growth, device_free, device_growth
        self.first: int | None = None
        self.first_on: dict[int, int] = {}  # bytes of tensors, by device

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        if wrong := [*self._host(memory.host()), *self._devices(memory.devices())]:
            raise Unhealthy("; ".join(wrong))

    def _host(self, now: memory.Host) -> Iterator[str]:
        self.first = now.resident if self.first is None else self.first
        if now.available < self.free:
            yield f"{now.available >> 20} MiB of host memory are available, want {self.free >> 20}"
        if (grown := now.resident - self.first) > self.growth:
            yield f"the process has grown by {grown >> 20} MiB over its restarts, at most {self.growth >> 20} are allowed"

    def _devices(self, now: dict[int, memory.OnDevice]) -> Iterator[str]:
        for i, of in now.items():
            if of.available < self.device_free:
                yield f"{of.available >> 20} MiB of CUDA device {i} are available, want {self.device_free >> 20}"
            if (grown := of.allocated - self.first_on.setdefault(i, of.allocated)) > self.device_growth:
                yield f"tensors on CUDA device {i} have grown by {grown >> 20} MiB over the restarts, at most {self.device_growth >> 20} are allowed"


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
