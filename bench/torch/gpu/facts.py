"""Says what this machine has for `make gpu-test`, as one JSON object: torch, CUDA, NCCL, driver, GPUs, memory, and how long a process takes to start.

A process of its own: the driver of the test holds no GPU.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from pathlib import Path
from typing import Any


def age() -> float:
    """Seconds since this process began."""
    began = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def available() -> int:
    """Bytes of host memory that new processes can have."""
    return int(re.findall(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[0]) * 1024


def driver() -> str:
    """The version of the kernel's driver."""
    try:
        return str(re.findall(r"\d{3,}\.\d[.\d]*", Path("/proc/driver/nvidia/version").read_text())[0])
    except (OSError, IndexError):
        return ""


def gpus(torch: Any) -> list[dict[str, Any]]:
    """Each GPU that this process sees, with its memory as it is before anything of ours is there."""
    found = []
    for i in range(torch.cuda.device_count()):
        of, (free, total) = torch.cuda.get_device_properties(i), torch.cuda.mem_get_info(i)
        found.append({"name": of.name, "capability": f"{of.major}.{of.minor}", "free": free, "total": total})
    return found


def backends(torch: Any) -> list[str]:
    """The backends of process groups that this torch has."""
    dist = torch.distributed
    there = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "nccl2": hasattr(dist.distributed_c10d, "ProcessGroupNCCL2")}
    return [name for name, is_there in there.items() if is_there]


def facts() -> dict[str, Any]:
    """What there is. ``start`` ends when the process could train: its imports are done, and the GPU has done something."""
    import torch
    import torch.distributed

    cuda = torch.cuda.is_available()
    if cuda:
        torch.ones(1024, device="cuda").sum().item()
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]).step()  # it imports the compiler
    start = age()
    return {
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda or "", "driver": driver(), "gpus": gpus(torch) if cuda else [],
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else "", "backends": backends(torch), "cores": len(os.sched_getaffinity(0)), "available": available(),
        "start": round(start, 2),
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(facts()))
