"""What memory there is for this process, and what it takes: of the node, and of each device that it uses."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from .parts import accelerator

__all__ = ["Host", "OnDevice", "devices", "host", "now"]


@dataclass(frozen=True)
class Host:
    """Bytes of the node's memory."""

    available: int
    resident: int  #: of this process


@dataclass(frozen=True)
class OnDevice:
    """Bytes of a device's memory."""

    free: int
    allocated: int  #: by this process's tensors
    reserved: int  #: by torch, for those and for tensors to come

    @property
    def available(self) -> int:
        """What this process may still allocate."""
        return self.free + self.reserved - self.allocated


def host() -> Host:
    """Of the node, now."""
    with open("/proc/meminfo") as f:
        available = next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable"))
    with open("/proc/self/statm") as f:
        return Host(available, int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))


def devices() -> dict[int, OnDevice]:
    """Of each device of which this process holds a context: asking another one would begin a context there. ``RuntimeError`` where one has failed."""
    device = accelerator()
    return {} if device is None else {i: OnDevice(device.device_bytes(i)[0], *device.own_bytes(i)) for i in device.used()}


def now() -> dict[str, Any]:
    """All of it as plain values, for a trace. Where a device has failed, its error stands in its place."""
    out: dict[str, Any] = asdict(host())
    try:
        out["devices"] = [{"device": i, **asdict(of)} for i, of in devices().items()]
    except RuntimeError as err:
        out["devices"] = f"{type(err).__name__}: {err}"
    return out
