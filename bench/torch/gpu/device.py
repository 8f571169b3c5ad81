"""What the programs of this folder ask of a device, a GPU or the CPU in its place; and the lines that they print."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def of(kind: str, rank: int) -> torch.device:
    """The device of a rank. Ranks share a GPU where there is one for all."""
    if kind == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def sync(device: torch.device) -> None:
    """Waits until it is through with all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(device: torch.device, work: Callable[[], object], times: int = 1) -> float:
    """How long the device takes for something, launch and all, of so many."""
    sync(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    sync(device)
    return (time.perf_counter() - began) / times


def behind(device: torch.device) -> None:
    """Gives the device some 20 ms to do, so that it is behind the host."""
    if device.type == "cuda":
        torch.cuda._sleep(30_000_000)  # cycles


class Events:
    """JSON lines on standard output, each in one write."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __call__(self, event: str, **more: Any) -> None:
        """Prints one."""
        line = {"gpu-test": 1, "t": time.time_ns(), "rank": self.rank, "pid": os.getpid(), "event": event, **more}
        os.write(1, json.dumps(line).encode() + b"\n")


def mapped() -> int:
    """Bytes of shared memory without a file that this process maps: a block that replicad pins, and what CUDA itself has for the device to copy to."""
    found = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .* /dev/zero \(deleted\)$", Path("/proc/self/maps").read_text(), re.M)
    return sum(int(end, 16) - int(start, 16) for start, end in found)


def memory(device: torch.device) -> dict[str, int]:
    """What this process holds."""
    free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else (0, 0)
    return {
        "host": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"), "device": total - free, "pinned": mapped(),
        "threads": len(os.listdir("/proc/self/task")), "descriptors": len(os.listdir("/proc/self/fd")),
    }  # fmt: skip
