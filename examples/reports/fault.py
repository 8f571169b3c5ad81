"""What the reports' programs share: a fault, how the loop counts, and a digest of what the training came to."""

from __future__ import annotations

import hashlib
import os
import pathlib
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

import replicad

RANK = replicad.place()[0]
#: A copy of a step is waited for so many seconds before a rank is killed.
PATIENCE = 20.0


def steps(session: replicad.Session, last: int) -> Iterable[int]:
    """The steps that are left: counted by the session, or by the loop itself, as most programs do (LOOP=range)."""
    return range(session.at + 1, last + 1) if os.environ.get("LOOP") == "range" else session.steps(last)


def fault(place: str, step: int) -> None:
    """Breaks the rank FAULT_RANK where FAULT says, as PLACE:STEP or PLACE:STEP:raise, once in the life of the job: the file MARK remembers it. A step lasts a while besides, so
    that copies keep up."""
    time.sleep(0.01)
    wanted = os.environ.get("FAULT", "").removesuffix(":raise")
    if wanted != f"{place}:{step}" or int(os.environ.get("FAULT_RANK", "0")) != RANK:
        return
    mark = pathlib.Path(os.environ["MARK"])
    if mark.exists():
        return
    mark.touch()
    _copied()
    os.write(1, f"FAULT {wanted}\n".encode())
    if os.environ["FAULT"].endswith(":raise"):
        raise RuntimeError("a fault, once")
    os.kill(os.getpid(), signal.SIGKILL)


def _copied() -> None:
    """Waits for a copy of the step before: a job that went back to its beginning would show nothing."""
    session = replicad.session.current()
    assert session is not None
    end = time.monotonic() + PATIENCE
    while session.committed < session.at - 1 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.2)  # of the newest step as well, mostly


def end(**states: Any) -> None:
    """Prints a digest of each state_dict, or tree of values."""
    found = {name: hashlib.sha256() for name in states}
    for name, state in states.items():
        for path, value in leaves(state.state_dict() if hasattr(state, "state_dict") else state):
            found[name].update(path.encode() + value)
    line = f"DIGEST {RANK} {' '.join(f'{name}={h.hexdigest()[:12]}' for name, h in found.items())}\n"
    os.write(1, line.encode())  # in one piece: the other ranks write to the same pipe


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, bytes]]:
    """The values of a tree as bytes, by their path, in an order that depends on the names alone."""
    if isinstance(value, torch.Tensor):
        yield path, value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from leaves(value[key], f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, x in enumerate(value):
            yield from leaves(x, f"{path}.{i}")
    else:
        yield path, repr(value).encode()
