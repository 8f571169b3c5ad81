"""replicad: a training job that survives the loss of processes, daemons and nodes, from its peers' memory.

:class:`Session` goes under a PyTorch loop; :class:`Rank` under anything else. Importing this package imports no torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ._core import beginnings, ending, torchenv
from ._core.capsule import Opaque
from ._core.feasible import Feasible, Loss
from ._core.rank import Order, Rank, Stats
from ._core.region import Region
from ._core.version import __version__ as __version__
from ._core.waiting import place, wait_rank
from .errors import (
    Again,
    Canceled,
    Corrupt,
    Error,
    Fenced,
    Fork,
    Gone,
    Invalid,
    Mismatch,
    NoMemory,
    Refused,
    RegroupNeeded,
    SessionState,
    StaleProcessGroup,
    StaleProgram,
    Stopped,
    System,
    Timeout,
    Unsupported,
    Version,
)

if TYPE_CHECKING:
    from ._torch.marked import moves, own
    from .session import Resumed, Session

connect = Rank.open

__all__ = [
    "Again",
    "Canceled",
    "Corrupt",
    "Error",
    "Feasible",
    "Fenced",
    "Fork",
    "Gone",
    "Invalid",
    "Loss",
    "Mismatch",
    "NoMemory",
    "Opaque",
    "Order",
    "Rank",
    "Refused",
    "Region",
    "RegroupNeeded",
    "Resumed",
    "Session",
    "SessionState",
    "StaleProcessGroup",
    "StaleProgram",
    "Stats",
    "Stopped",
    "System",
    "Timeout",
    "Unsupported",
    "Version",
    "connect",
    "moves",
    "own",
    "place",
    "wait_rank",
]


if "REPLICAD_PRELOAD_SERVE" in os.environ:
    os._exit(70)  # the process that restarts fork from must never come to the program: something has kept its `sitecustomize` from it


def _begin() -> None:
    """Does what depends on the environment: when the package is imported, and again in a process that was forked after that."""
    if "REPLICAD_RANK" in os.environ:  # a rank's program may run short while it builds its model, before it has a session
        ending.install()
    torchenv.install()
    beginnings.begin()


_begin()

_MODULES = ("data", "dcp", "inprocess", "parallel", "rng", "store", "testing")
#: What puts a session under other people's loops; each imports its framework when it is asked for.
_ADAPTERS = ("accelerate", "deepspeed", "huggingface", "lightning", "megatron", "torchtitan")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, *_ADAPTERS, "errors"])


def __getattr__(name: str) -> Any:
    if name in ("Resumed", "Session"):
        return getattr(_over_torch("session"), name)
    if name in ("moves", "own"):
        return getattr(_over_torch("_torch.marked"), name)
    if name in _MODULES:
        return _over_torch(name)
    if name in _ADAPTERS:
        return _over_torch(f"adapters.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _over_torch(name: str) -> Any:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as err:
        if err.name != "torch":
            raise
        raise ImportError(f"replicad.{name} is for PyTorch, which is not installed: pip install 'torch>=2.6'; replicad.Rank works without it", name="torch") from err
