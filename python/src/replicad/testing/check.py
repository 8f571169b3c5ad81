"""Is a resumed run the same run? Does a generation that lies in a store go on as its run did?"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import trainee
from .daemon import Daemon
from .trainee import Train

__all__ = ["SOURCES", "Checked", "Different", "Resumption", "Train", "check_generation", "check_resume"]

#: Where :func:`check_resume` can have the second process go on from: memory, after a SIGKILL to the first one; or disk, after one to everything.
SOURCES = ("own-ram", "durable")


class Different(AssertionError):
    """A resumed run is not the run that went through: ``name`` differs after ``step``."""

    def __init__(self, name: str, step: int, how: str) -> None:
        super().__init__(f"{name} differs after step {step}: {how}")
        self.name, self.step = name, step


@dataclass(frozen=True)
class Resumption:
    """What :func:`check_resume` saw where nothing differed."""

    steps: int  #: in all
    resumed_at: int  #: the step from whose state the second process went on
    source: str  #: where it came from: "own-ram", "peer-ram", "durable"
    compared: int  #: named values that were equal


@dataclass(frozen=True)
class Checked:
    """What :func:`check_generation` saw where nothing differed."""

    loaded: str  #: the generation that was loaded
    compared: str  #: the run's next one, which its steps led to
    steps: int  #: between the two


#: Of jobs whose processes start once: nobody needs a process that their restarts would fork from, and it would import all that they import.
ONCE = ("--preload", "none")


def check_resume(
    train_fn: Train,
    *,
    steps: int,
    more: int,
    source: str = "own-ram",
    world: int = 1,
    timeout: float = 120.0,
    program: str | None = None,
    arguments: Sequence[str] | None = None,
) -> Resumption:
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
    With ``source="durable"`` the job is told to end after step ``steps``, which puts its newest commit on disk. Then daemon and keeper are killed, and a new
    daemon, which has nothing but that disk, goes on.
    With ``world=W`` beside it, a job of W ranks begins from that generation (``replicad run --from``) and makes its state durable, a job of one rank begins from that, and trains
    the rest: what went over W ranks and back has to be what it was. ``train_fn`` makes what W ranks need (process groups, wrappers) where ``replicad.place()`` says so.
    ``program`` is the replicad program (default: $REPLICAD, else the one on the path); ``timeout`` is in seconds, for each
    of the two runs. ``arguments`` are what the file of ``train_fn`` finds in ``sys.argv[1:]`` (default: this program's own, if that is the file, else none).
    ``ValueError`` for arguments that make no sense, ``FileNotFoundError`` where there is no such program, ``RuntimeError`` with its output where a run fails: by an exception
    of ``train_fn``, a step without a yield or with two, or the time.
    """
    if steps < 1 or more < 1:
        raise ValueError(f"check_resume: steps={steps}, more={more}: want at least 1 for each")
    if source not in SOURCES:
        raise ValueError(f"check_resume: source={source!r}: want one of {', '.join(SOURCES)}")
    train = Program.of("check_resume", train_fn, arguments)
    if world < 1 or (world > 1 and source != "durable"):
        raise ValueError(f"check_resume: world={world}: want at least 1, and source='durable' where it is not 1")
    last = steps + more
    daemon = Daemon(binary("check_resume", program))
    with daemon:
        straight = _run(daemon, "straight", train.command(last), last, timeout, *ONCE)
        if source == "durable":
            _ends(daemon, "resumed", train.command(last, steps, "launcher"), steps, timeout)
            daemon.afresh()
            if world > 1:
                return _through(daemon, train, straight, steps, last, world, timeout)
            resumed = _run(daemon, "resumed", train.command(last, steps, "launcher"), last, timeout, "--resume", *ONCE)
        else:
            resumed = _run(daemon, "resumed", train.command(last, steps), last, timeout)
    return _compare(straight, resumed, steps, source)


def _through(daemon: Daemon, train: Program, straight: list[dict[str, Any]], steps: int, last: int, world: int, timeout: float) -> Resumption:
    """The state of a step goes over some ranks and back, and is trained from."""
    first, second = f"{daemon.durable}/resumed@{steps}", f"{daemon.durable}/through@{steps}"
    status, said, _ = _launched(daemon, "through", train.command(steps, 0, "through"), timeout, "--durable-every", "0", "--groups", "auto", "--from", first, *ONCE, world=world)
    if status:
        raise RuntimeError(f"the run of {world} ranks failed (status {status}):\n{said}")
    records = _run(daemon, "back", train.command(last), last, timeout, "--from", second, *ONCE)
    if (at := [r["resumed"] for r in records if "resumed" in r]) != [steps]:
        raise AssertionError(f"of {second} the job went on from {at}")
    return Resumption(last, steps, "durable", _same(straight, records, f"over {world} ranks and back"))


def check_generation(train_fn: Train, url: str, *, timeout: float = 120.0, program: str | None = None, arguments: Sequence[str] | None = None) -> Checked:
    """Loads one generation of a run in a process of its own, trains to the run's next generation, and compares every tensor and metric with it; raises
    :class:`Different` for the first that is not bit for bit equal. The run may be under way: it is read, and nothing of it changes.

    ``url`` is what ``replicad ckpt ls`` takes: a job in a directory or bucket, ``s3://bucket/ckpt/lm``, ``/ckpt/lm``, with ``@STEP`` behind it for one
    generation (default: the newest that has a later one, two steps on or more, to compare with). ``replicad run --durable-every 1`` makes each step durable.
    ``train_fn`` and the rest are as for :func:`check_resume`; it must be the run's own program. The run has one rank.
    ``ValueError`` where there are no two such generations.
    """
    train = Program.of("check_generation", train_fn, arguments)
    daemon = Daemon(binary("check_generation", program))
    with daemon:
        where, _, _ = _split(url)
        job, one, two = _pair(url, json.loads(_printed(daemon, timeout, "ckpt", "ls", where, "--json")))
        loaded, compared = f"{where}@{one['step']}.e{one['epoch']}", f"{where}@{two['step']}.e{two['epoch']}"
        first, last = one["step"], two["step"]
        _printed(daemon, timeout, "ckpt", "cp", loaded, str(daemon.durable))
        own = str(daemon.durable / job)
        records = _ends(daemon, job, train.command(last, last, "launcher"), last, timeout, "--resume")
        if (at := [(r["resumed"], r["source"]) for r in records if "resumed" in r]) != [(first, "durable")]:
            raise AssertionError(f"of {loaded} the job went on from {at}")
        mine = next(r for r in json.loads(_printed(daemon, timeout, "ckpt", "ls", own, "--json")) if r["step"] == last)
        differences = json.loads(_printed(daemon, timeout, "ckpt", "diff", compared, f"{own}@{last}", "--json", codes=(0, 1)))
    for d in differences:
        how = f"{d['elements']} of {d['of']} elements, by {d['most']} at most" if d["what"] == "values" else f"{d['what']}: {d.get('a', '-')} in the run, {d.get('b', '-')} here"
        raise Different(d["tensor"], last, f"{how}. {compared} is what the run had, after a load of {loaded} it is another.")
    had, have = two.get("metrics", {}), mine.get("metrics", {})
    for name in [*had, *(n for n in have if n not in had)]:
        if had.get(name) != have.get(name):
            raise Different(name, last, f"{had.get(name, 'nothing')} in {compared}, {have.get(name, 'nothing')} after a load of {loaded}. Every tensor is equal.")
    return Checked(loaded, compared, last - first)


def _split(url: str) -> tuple[str, int | None, int | None]:
    """The place, and the step and epoch behind @."""
    found = re.fullmatch(r"(.*)@(\d+)(?:\.e(\d+))?", url)
    if not found:
        return url, None, None
    return found[1], int(found[2]), int(found[3]) if found[3] else None


def _pair(url: str, rows: list[dict[str, Any]]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The job, the generation that is named and the next one of its run that lies two steps on or more: what a session sees only in its second step, such as
    whether gradients stay, is kept otherwise in the first. The rows are in the order of `replicad ckpt ls`: the newest first."""
    where, step, epoch = _split(url)
    if len(jobs := {r["job"] for r in rows}) != 1:
        raise ValueError(f"check_generation: {where} has {len(jobs)} jobs: want one, as in s3://bucket/ckpt/lm")
    run = [r for r in rows if r["run"] == rows[0]["run"] and r["state"] in ("good", "unread")]
    later = {id(r): [o for o in run if o["step"] >= r["step"] + 2 and o["epoch"] >= r["epoch"]] for r in run}
    ones = [r for r in run[1:] if later[id(r)] and (step is None or (r["step"] == step and epoch in (None, r["epoch"])))]
    if not ones:
        has = ", ".join(str(r["step"]) for r in run) or "none"
        raise ValueError(
            f"check_generation: {url}: want a whole generation and a later one of the same run, two steps on or more, to compare with; {rows[0]['run']} has the steps {has}"
        )
    one = ones[0]
    two = min(later[id(one)], key=lambda r: (r["step"], -r["epoch"]))
    return rows[0]["job"], one, two


def _printed(daemon: Daemon, timeout: float, *command: str, codes: Sequence[int] = (0,)) -> str:
    done = daemon.command(*command, timeout=timeout)
    if done.returncode not in codes:
        raise RuntimeError(f"replicad {' '.join(command)}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def binary(name: str, program: str | None) -> str:
    binary = program or os.environ.get("REPLICAD") or shutil.which("replicad")
    if not binary:
        raise FileNotFoundError(f"{name}: no replicad program on the path: give program=, or set REPLICAD")
    return binary


@dataclass(frozen=True)
class Program:
    """A training function, as other processes find it."""

    module: str
    file: str
    function: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, caller: str, fn: Callable[..., Any], arguments: Sequence[str] | None) -> Program:
        if trainee.running:
            raise RuntimeError(f'{caller} is called by a process of {caller}, which loaded this program for its training function: put the call under `if __name__ == "__main__":`')
        module, file = _place(caller, fn)
        if arguments is None:
            arguments = sys.argv[1:] if fn.__module__ == "__main__" else ()
        return cls(module, file, fn.__qualname__, tuple(arguments))

    def command(self, last: int, kill: int = 0, how: str = "process") -> list[str]:
        """What trainee.main takes behind its first argument."""
        return [self.module, self.file, self.function, str(last), str(kill), how, *self.arguments]


def _place(caller: str, fn: Callable[..., Any]) -> tuple[str, str]:
    """Where another process finds this function: the name of its module ("__main__" if it is in a program that has no other) and its file."""
    if "<" in fn.__qualname__ or "." in fn.__qualname__:
        raise ValueError(f"{caller}: {fn.__qualname__} must be at the top level of its file: other processes load it from there")
    module = sys.modules[fn.__module__]
    name, file = fn.__module__, getattr(module, "__file__", None)
    if not file or not Path(file).is_file():
        raise ValueError(f"{caller}: {fn.__qualname__} is in no file ({name}): write it to one, which other processes load, and import it from there")
    if name == "__main__" and module.__spec__ is not None:
        name = module.__spec__.name  # python -m
    return name, os.path.abspath(file)


def _run(daemon: Daemon, name: str, train: Sequence[str], last: int, timeout: float, *flags: str) -> list[dict[str, Any]]:
    """One of the two runs: what its processes wrote. RuntimeError with what they printed if it did not come to its end."""
    status, said, records = _launched(daemon, name, train, timeout, *flags)
    if status:
        raise RuntimeError(f"the {name} run failed (status {status}):\n{said}")
    if (at := max((r["step"] for r in records if "step" in r), default=0)) < last:
        raise RuntimeError(f"the {name} run ended after step {at}: it was asked to train, and to yield after each step, up to {last}. It printed:\n{said}")
    return records


def _ends(daemon: Daemon, name: str, train: Sequence[str], step: int, timeout: float, *flags: str) -> list[dict[str, Any]]:
    """A run whose launcher is told to end after a step: its newest commit becomes durable."""
    status, said, records = _launched(daemon, name, train, timeout, "--durable-every", str(step), *ONCE, *flags)
    if not any(r.get("killed") == step for r in records):
        raise RuntimeError(f"the {name} run ended before step {step} (status {status}):\n{said}")
    _printed(daemon, timeout, "job", "end", "--dev", name)  # it waits for the write
    return records


def _launched(daemon: Daemon, name: str, train: Sequence[str], timeout: float, *flags: str, world: int = 1) -> tuple[int, str, list[dict[str, Any]]]:
    """How a launcher ended, what was printed, and what its processes wrote."""
    out = Path(daemon.folder, f"{name}.jsonl")
    command = [sys.executable, "-c", "from replicad.testing import trainee; trainee.main()", str(out), *train]
    status, said = launched(daemon, name, command, timeout, *flags, world=world)
    return status, said, [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def launched(daemon: Daemon, name: str, command: Sequence[str], timeout: float, *flags: str, world: int = 1) -> tuple[int, str]:
    """How the launcher of a job ended, and what was printed."""
    log = Path(daemon.folder, f"{name}.log")
    with open(log, "w") as printed:
        launcher = daemon.start(
            "run", "--dev", "--job", name, "--world", str(world), "--ranks", ",".join(map(str, range(world))), "--min-copies", "1", *flags, "--", *command,
            env=daemon.env | {"PYTHONPATH": daemon.path}, cwd=None, stdout=printed, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        status = launcher.wait(timeout)
    except subprocess.TimeoutExpired:
        said = log.read_text(errors="replace")[-8000:]
        advice = "if it only takes long, give a longer timeout= or fewer steps"
        raise RuntimeError(f"the {name} run has not ended after {timeout:g} s; {advice}. It printed so far:\n{said or '(nothing)'}") from None
    said = log.read_text(errors="replace")[-8000:]
    if status:
        said = said.partition("replicad run: terminated:")[0]  # by trainee.main: that the job could be gone on with is no help here
    return status, said


def _same(straight: list[dict[str, Any]], records: list[dict[str, Any]], how: str) -> int:
    """Compares what two runs wrote after each step that both have made. How many values are equal."""
    want, compared = {r["step"]: r["values"] for r in straight if "step" in r}, 0
    for r in (r for r in records if "step" in r):
        a, b = want[r["step"]], r["values"]
        for name in [*a, *(n for n in b if n not in a)]:
            if a.get(name) != b.get(name):
                raise Different(name, r["step"], f"{a.get(name, 'nothing')} in one go, {b.get(name, 'nothing')} {how}. Everything before it is equal.")
            compared += 1
    return compared


def _compare(straight: list[dict[str, Any]], resumed: list[dict[str, Any]], killed: int, source: str) -> Resumption:
    starts = [r for r in resumed if "resumed" in r]
    if len(starts) < 2 or starts[-1]["resumed"] != killed:
        raise AssertionError(f"killed after step {killed} was committed, the job went on from {[s['resumed'] for s in starts][1:]}")
    if source != "own-ram" and starts[-1]["source"] != source:
        raise AssertionError(f"everything was killed, and yet the state came from {starts[-1]['source']}")
    compared = _same(straight, resumed, "after the resume")
    return Resumption(max(r["step"] for r in straight if "step" in r), killed, starts[-1]["source"], compared)
