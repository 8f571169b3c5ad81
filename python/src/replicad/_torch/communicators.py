"""Whether what a device has computed can be vouched for.

A collective that was aborted ends like any other, with whatever it had by then, and the update behind it takes that for gradients. So once a device is through with a
step, every communicator is asked. Torch's watchdog notes an error before it aborts anything (``get_error``); an abort that a program asks for is counted here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Communicators", "Fault", "Seen"]

#: Backends whose collectives end on the host: one that fails raises there.
OF_THE_HOST = ("gloo", "mpi", "fake")
#: ``TORCH_NCCL_ASYNC_ERROR_HANDLING``: values with which torch's watchdog aborts nothing and leaves the process to be ended.
NO_ABORT = ("", "0", "3")
#: The variable, and its older name, which torch reads as well.
HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")

_aborts, _counting = 0, threading.Lock()


@dataclass(frozen=True)
class Seen:
    """What was known when a step began."""

    aborts: int


@dataclass(frozen=True)
class Fault:
    """Why what was computed can't be vouched for. ``lost``: it may be anything; else nobody knows, and never will."""

    why: str
    lost: bool = True


class Communicators:
    """Every process group of this process."""

    def __init__(self) -> None:
        _count_aborts()

    def now(self) -> Seen:
        """What is known as a step begins."""
        return Seen(_aborts)

    def fault(self, since: Seen) -> Fault | None:
        """What is wrong with what was computed since then, if anything is."""
        if _aborts != since.aborts:
            return Fault("a process group was aborted meanwhile")
        for group, name in _groups().items():
            for backend in _on_devices(group):
                if fault := _fault(backend):
                    return Fault(f"the process group {name}: {fault.why}", fault.lost)
        return None


def _c10d() -> Any:
    return sys.modules.get("torch.distributed.distributed_c10d")


def _groups() -> dict[Any, str]:
    return {} if (c10d := _c10d()) is None else dict(c10d._world.pg_names)


def _on_devices(group: Any) -> Iterator[Any]:
    for device in getattr(group, "_device_types", ()):
        if device.type == "cuda":
            yield group._get_backend(device)


def _fault(backend: Any) -> Fault | None:
    name = backend.name().lower() if callable(getattr(backend, "name", None)) else type(backend).__name__
    if name in OF_THE_HOST:
        return None
    try:
        error = backend.get_error()
    except (AttributeError, RuntimeError, NotImplementedError):  # torch 2.6 has no such word; some backends have no answer
        if name == "nccl" and all(os.environ.get(variable, "") in NO_ABORT for variable in HANDLING):
            return None
        return Fault(f"{name} can't be asked whether a collective has failed: use nccl (of torch 2.7 or later), or gloo", lost=False)
    return None if int(error) == 0 else Fault(f"{name} reports {getattr(error, 'name', error)}")


def _count_aborts() -> None:
    """Has every abort of a process group counted before it begins, whoever asks for it, and the end of one that has failed."""
    if (c10d := _c10d()) is None:
        return
    backends = getattr(c10d, "ProcessGroupNCCL", None)
    for kind in (c10d.ProcessGroup, *(backends.__mro__ if backends is not None else ())):
        for word in ("abort", "_abort", "shutdown"):
            if (inner := vars(kind).get(word)) is not None and not hasattr(inner, "replicad"):
                setattr(kind, word, _counted(inner, word == "shutdown"))


def _counted(inner: Any, in_peace: bool) -> Any:
    """``in_peace``: it waits for what is under way, and only an error that nobody can ask for afterwards counts."""

    def abort(self: Any, *args: Any, **more: Any) -> Any:
        global _aborts
        if not in_peace or any(map(_fault, _on_devices(self) if hasattr(self, "_device_types") else (self,))):
            with _counting:  # any thread ends its groups
                _aborts += 1
        return inner(self, *args, **more)

    abort.replicad = True  # type: ignore[attr-defined]
    return abort
