"""Runs programs of examples/loops as a test wants them: with a digest of what the session has at the end, and killed where the test says.

    python looped.py PROGRAM...    without a launcher: one after the other, each in a child of its own
    python looped.py PROGRAM       as a rank

KILLS names moments, as ``forward:7 iteration:12``: in the forward of step 7, and when the loop asks for the step after 12 (``batch:12``: for the batch after it). Each happens
once in the life of the job, and leaves a file in the working directory.
"""

from __future__ import annotations

import hashlib
import os
import random
import runpy
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import quick  # isort: skip: before torch
import torch

import replicad
from replicad._torch.steps import Steps
from replicad.data import Loader
from replicad.session import Session

assert quick, "imported for what it does"

KILLS = os.environ.get("KILLS", "").split()


def at(place: str, session: Session, step: int) -> None:
    """Kills this process if this is the moment, once a step is committed: a job that went back to its beginning would show nothing."""
    mark = Path(f"killed-{place}-{step}")
    if f"{place}:{step}" not in KILLS or mark.exists():
        return
    mark.touch()
    while session.committed < 1:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def hooked() -> None:
    """Has every session call :func:`at`, and print a digest when it leaves."""
    make, asked, ask = Session.resume, Steps.__next__, Loader._tell

    def resume(self: Session, timeout: float | None = None) -> Any:
        resumed = make(self, timeout)
        if self.enabled:
            self.reached = lambda place, step: at(place, self, step)
            next(iter(given["model"].values())).register_forward_pre_hook(lambda *_: at("forward", self, self.at + 1))
        return resumed

    def further(self: Steps) -> int:
        session = replicad.session.current()
        if session is not None and self.step:
            at("iteration", session, self.step)
        return asked(self)

    def batch(self: Loader) -> None:
        session = replicad.session.current()
        if session is not None:
            at("batch", session, session.at)
        ask(self)

    given: dict[str, Any] = {}

    def made(model: Any = (), optimizer: Any = (), **more: Any) -> Session:
        given.update(more, model=model if isinstance(model, dict) else {"model": model}, optimizer=optimizer if isinstance(optimizer, dict) else {"optimizer": optimizer})
        session = Session(model, optimizer, **more)
        leave = session.leave
        session.leave = lambda *args: print("DIGEST", digest(given), flush=True) or leave(*args)  # type: ignore[method-assign, func-returns-value]
        return session

    Session.resume, Steps.__next__, Loader._tell, replicad.Session = resume, further, batch, made  # type: ignore[method-assign, assignment, misc]


def digest(given: dict[str, Any]) -> str:
    """Of all that a session was given, and of the generators."""
    h = hashlib.sha256(bytes(replicad.rng.get()))
    for path, value in leaves({k: v for k, v in given.items() if k != "shared_buffers"}, ""):
        h.update(f"{path} {value};".encode())
    return h.hexdigest()


def leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The values of a tree by their path."""
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        yield path, hashlib.sha256(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    elif isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, x in enumerate(value):
            yield from leaves(x, f"{path}.{i}")
    else:
        yield path, repr(value)


def run(program: str) -> None:
    """As `python PROGRAM` does, but that generators which nobody seeds begin alike in each run."""
    sys.argv = [program]
    random.seed(1)
    np.random.seed(1)
    runpy.run_path(program, run_name="__main__")


def main(programs: list[str]) -> None:
    """One program here, more in children."""
    hooked()
    if "REPLICAD_RANK" in os.environ:
        run(programs[0])
        return
    for program in programs:
        print("PROGRAM", Path(program).name, flush=True)
        if pid := os.fork():
            _, status = os.waitpid(pid, 0)
            if status:
                raise SystemExit(f"{program} ended with {status}")
            continue
        os.chdir(os.environ["ALONE"])
        run(program)
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
