"""Is a resumed run the same run?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import trainee
from .daemon import Daemon

__all__ = ["Different", "Resumption", "Train", "check_resume"]


class Different(AssertionError):
    """A resumed run is not the run that went through: ``name`` differs after ``step``."""

    def __init__(self, name: str, step: int, straight: str, resumed: str) -> None:
        super().__init__(f"{name} differs after step {step}: {straight} in one go, {resumed} after the resume. Everything before it is equal.")
        self.name, self.step = name, step


@dataclass(frozen=True)
class Resumption:
    """What :func:`check_resume` saw where nothing differed."""

    steps: int  #: in all
    resumed_at: int  #: the step from whose state the second process went on
    source: str  #: where it came from: "own-ram", "peer-ram", "durable"
    compared: int  #: named values that were equal


#: A generator function: it trains up to the step that it is given, and yields after each step what it wants compared (losses,
#: samples) by name.
Train = Callable[[int], Iterator[Mapping[str, Any]]]


def check_resume(train_fn: Train, *, steps: int, more: int, timeout: float = 120.0, program: str | None = None, arguments: Sequence[str] | None = None) -> Resumption:
    """Trains ``steps + more`` steps in one go, and again with a SIGKILL once step ``steps`` is committed and another process for the
    rest; compares the two after each step and raises :class:`Different` for the first thing that is not bit for bit equal.

    ``train_fn(last)`` is a generator function at the top level of a module or of a program; it makes its own :class:`replicad.Session` and yields
    once after each step::

        def train(last):
            ...model, optimizer, loader...
            with replicad.Session(model=model, optimizer=optimizer, data=loader) as session:
                session.resume()
                for step in session.steps(last):
                    x, y = next(batches)
                    ...
                    with session.step():
                        optimizer.step()
                    yield {"samples": (x, y), "loss": loss}

    What it yields is compared in its order (put what comes first in a step first: samples before what follows from them), and besides it every
    tensor of the session, the optimizer's and scheduler's values, the loader's place and the random generators, all by name. Both runs have one
    rank, under a daemon of their own that is started here and ended, whatever ends this process.
    A module is imported in them by its name; a program is loaded as multiprocessing loads it in a spawned child, so its main part belongs under ``if __name__ == "__main__":``.
    ``program`` is the replicad program (default: $REPLICAD, else the one on the path); ``timeout`` is in seconds, for each
    of the two runs. ``arguments`` are what the file of ``train_fn`` finds in ``sys.argv[1:]`` (default: this program's own, if that is the file, else none).
    ``ValueError`` for arguments that make no sense, ``FileNotFoundError`` where there is no such program, ``RuntimeError`` with its output where a run fails: by an exception
    of ``train_fn``, a step without a yield or with two, or the time.
    """
    if steps < 1 or more < 1:
        raise ValueError(f"check_resume: steps={steps}, more={more}: want at least 1 for each")
    if trainee.running:
        raise RuntimeError(
            'check_resume is called by a process of check_resume, which loaded this program for its training function: put the call under `if __name__ == "__main__":`'
        )
    module, file = _place(train_fn)
    binary = program or os.environ.get("REPLICAD") or shutil.which("replicad")
    if not binary:
        raise FileNotFoundError("check_resume: no replicad program on the path: give program=, or set REPLICAD")
    if arguments is None:
        arguments = sys.argv[1:] if train_fn.__module__ == "__main__" else ()
    daemon = Daemon(binary)
    with daemon:
        straight, resumed = (
            _run(daemon, name, [module, file, train_fn.__qualname__, str(steps + more), str(kill), *arguments], steps + more, timeout)
            for name, kill in (("straight", 0), ("resumed", steps))
        )
    return _compare(straight, resumed, steps)


def _place(fn: Train) -> tuple[str, str]:
    """Where another process finds this function: the name of its module ("__main__" if it is in a program that has no other) and its file."""
    if "<" in fn.__qualname__ or "." in fn.__qualname__:
        raise ValueError(f"check_resume: {fn.__qualname__} must be at the top level of its file: other processes load it from there")
    module = sys.modules[fn.__module__]
    name, file = fn.__module__, getattr(module, "__file__", None)
    if not file or not Path(file).is_file():
        raise ValueError(f"check_resume: {fn.__qualname__} is in no file ({name}): write it to one, which other processes load, and import it from there")
    if name == "__main__" and module.__spec__ is not None:
        name = module.__spec__.name  # python -m
    return name, os.path.abspath(file)


def _run(daemon: Daemon, name: str, train: Sequence[str], last: int, timeout: float) -> list[dict[str, Any]]:
    """One of the two runs: what its processes wrote. RuntimeError with what they printed if it did not come to its end."""
    out, log = Path(daemon.folder, f"{name}.jsonl"), Path(daemon.folder, f"{name}.log")
    command = [sys.executable, "-c", "from replicad.testing import trainee; trainee.main()", str(out), *train]
    with open(log, "w") as printed:
        launcher = daemon.start(
            "run", "--dev", "--job", name, "--world", "1", "--ranks", "0", "--min-copies", "1", "--", *command,
            env=daemon.env | {"PYTHONPATH": daemon.path}, cwd=None, stdout=printed, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        status = launcher.wait(timeout)
    except subprocess.TimeoutExpired:
        said = log.read_text(errors="replace")[-8000:]
        advice = "if it only takes long, give check_resume a longer timeout= or fewer steps"
        raise RuntimeError(f"the {name} run has not ended after {timeout:g} s; {advice}. It printed so far:\n{said or '(nothing)'}") from None
    said = log.read_text(errors="replace")[-8000:]
    if status:
        said = said.partition("replicad run: terminated:")[0]  # by trainee.main: that the job could be gone on with is no help here
        raise RuntimeError(f"the {name} run failed (status {status}):\n{said}")
    records = [json.loads(line) for line in out.read_text().splitlines()]
    if (at := max((r["step"] for r in records if "step" in r), default=0)) < last:
        raise RuntimeError(f"the {name} run ended after step {at}: it was asked to train, and to yield after each step, up to {last}. It printed:\n{said}")
    return records


def _compare(straight: list[dict[str, Any]], resumed: list[dict[str, Any]], killed: int) -> Resumption:
    want = {r["step"]: r["values"] for r in straight if "step" in r}
    starts = [r for r in resumed if "resumed" in r]
    if len(starts) < 2 or starts[-1]["resumed"] != killed:
        raise AssertionError(f"killed after step {killed} was committed, the job went on from {[s['resumed'] for s in starts][1:]}")
    compared = 0
    for r in (r for r in resumed if "step" in r):
        a, b = want[r["step"]], r["values"]
        for name in [*a, *(n for n in b if n not in a)]:
            if a.get(name) != b.get(name):
                raise Different(name, r["step"], a.get(name, "nothing"), b.get(name, "nothing"))
            compared += 1
    return Resumption(max(want), killed, starts[-1]["source"], compared)
