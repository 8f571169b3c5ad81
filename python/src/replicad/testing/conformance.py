"""The suite that every adapter of a framework passes: is a run that was broken at each place of a step, and went on, the run that went through?

A :class:`Subject` is one way to train under one adapter. It trains three times: plain, without replicad; through faults that kill processes; and through exceptions in processes
that go on. Weights alone do not tell: a callback of the framework's own, which does not know replicad, records every step, log, evaluation, end of an epoch and save. The
lines of each life of a rank have to be a piece of the plain run's lines that begins no later than where the life before has ended: a line that nobody did again is a gap.

Nothing of a framework is imported here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import inprocess
from .._core import waiting
from . import recorder, trainee
from .faults import Injected
from .trainee import digest, load

if TYPE_CHECKING:
    import torch

    from ..session import Session

__all__ = ["HOWS", "Break", "Report", "Row", "Run", "Subject", "Suite", "judge"]

#: How a rank is broken: a SIGKILL to its process, or an exception in a block that is run again in the same process.
HOWS = ("kill", "raise")


@dataclass(frozen=True)
class Break:
    """One fault: at a place of a step, in a rank, once in the life of the job."""

    place: str
    step: int
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.place} {self.step}" + (f", rank {self.rank}" if self.rank else "")


class Run:
    """What a subject is told of the run that it is for, and what it tells of it."""

    def __init__(self, folder: Path, rank: int, world: int, how: str, plan: Sequence[Break] = ()) -> None:
        self.folder, self.rank, self.world, self.how, self.plan = folder, rank, world, how, plan
        self.kept = how != "plain"  #: whether replicad is to keep it
        self._path = folder / f"rank{rank}"
        self._forwards = (0, 0)  # a step, and how many forwards of it there were

    def event(self, name: str, step: int, **values: Any) -> None:
        """Something that the framework did, from a callback of its own. Values are texts and numbers; times are none of them."""
        self._write([name, step, {k: repr(v) for k, v in sorted(values.items())}])

    def _write(self, line: Any) -> None:
        with open(self._path, "a") as out:
            out.write(json.dumps(line) + "\n")

    def life(self) -> None:
        """A process, or a run of its block, begins."""
        self._write("life")

    def digests(self, values: Mapping[str, Any]) -> None:
        """What there is in the end, by name: trees of tensors, numbers and texts."""
        self._write({name: digest(value) for name, value in values.items()})

    def noticed(self, lacks: Mapping[str, str], due: Collection[str] = ()) -> None:
        """What the session has named, but for what it is to name: a plain run has no such line."""
        if named := sorted(set(lacks) - set(due)):
            self.event("noticed", 0, names=named)

    def at(self, place: str, step: int) -> None:
        """The rank is at a place of a step; what is to break there does, if it has not yet."""
        for i, b in enumerate(self.plan):
            if (b.place, b.step, b.rank) == (place, step, self.rank) and self._first(i):
                self._write(f"broken {i}")
                if self.how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise Injected(f"injected at {b}")

    def _first(self, i: int) -> bool:
        try:
            open(self.folder / f"broken-{i}", "x").close()
        except FileExistsError:
            return False
        return True

    def watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], int]) -> None:
        """Finds the places that every framework has: ``forward``, ``second forward`` (of a later micro-batch), ``backward`` and ``step``. ``step()`` is the step that is being
        made. Nothing of the training changes by it."""
        inner = [m for m in model.modules() if list(m.parameters(recurse=False))]
        middle = inner[len(inner) // 2]
        middle.register_forward_pre_hook(lambda module, args: self._forward(module, step()))
        middle.register_forward_hook(lambda module, args, out: self._backward(out, step))
        optimizer.register_step_pre_hook(lambda *_: self.at("step", step()))

    def _forward(self, module: torch.nn.Module, step: int) -> None:
        if module.training:
            self._forwards = (step, self._forwards[1] + 1 if self._forwards[0] == step else 1)
            self.at("forward" if self._forwards[1] == 1 else "second forward", step)

    def _backward(self, out: Any, step: Callable[[], int]) -> None:
        if getattr(out, "requires_grad", False):
            out.register_hook(lambda grad: self.at("backward", step()))


class Subject:
    """One way to train under one adapter: ``name`` it, and write its three methods. A run makes one of it in each process."""

    name = "?"
    #: What its session is to name (``session.noticed``). Any other name there is a difference: a false word, or something that is in no copy.
    noticed: Collection[str] = ()

    def __init__(self, run: Run) -> None:
        """Makes everything, under the adapter if ``run.kept``."""
        self.run = run

    @property
    def session(self) -> Session:
        """The adapter's, where it is kept."""
        raise NotImplementedError

    def train(self) -> None:
        """Trains to the end; in a process that goes on it is called again."""
        raise NotImplementedError

    def forget(self) -> None:
        """Takes out what has a session know of what follows a step."""
        self.session.follow = lambda name: None  # type: ignore[method-assign]

    def digests(self) -> Mapping[str, Any]:
        """What there is in the end: weights, optimizer, scheduler, by name. Generators are added."""
        raise NotImplementedError


@dataclass(frozen=True)
class Row:
    """What came of one fault."""

    subject: str
    world: int
    how: str
    fault: str
    differs: str = ""  #: what, where it is not equal


@dataclass
class Report:
    """What came of all of them. It prints as a table."""

    rows: list[Row] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether everything was."""
        return not any(r.differs for r in self.rows)

    def __add__(self, other: Report) -> Report:
        return Report(self.rows + other.rows)

    def __str__(self) -> str:
        lines = ["| adapter | world | fault | by | equal |", "|---|---|---|---|---|"]
        lines += [f"| {r.subject} | {r.world} | {r.fault} | {r.how} | {f'NO: {r.differs}' if r.differs else 'yes'} |" for r in self.rows]
        return "\n".join(lines)


# -- the judgement ------------------------------------------------------------------------------------------------------------


@dataclass
class Life:
    """What a rank's file has of one life."""

    events: list[Any] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)  #: the faults that it met
    digests: dict[str, str] = field(default_factory=dict)  #: of one that came to the end


def lives(text: str) -> list[Life]:
    """A rank's file."""
    found: list[Life] = []
    for line in text.splitlines():
        value = json.loads(line)
        if value == "life":
            found.append(Life())
        elif isinstance(value, str):
            found[-1].broken.append(int(value.split()[1]))
        elif isinstance(value, dict):
            found[-1].digests = value
        else:
            found[-1].events.append(value)
    return found


def judge(plain: Sequence[Life], broken: Sequence[Life]) -> dict[int, str]:
    """What differs between a rank's plain run and its broken one, by the number of the fault behind whose life that was; 0 counts as the last where no fault came before, and
    nothing is in it where all is equal."""
    whole, done, last = plain[0].events, 0, 0
    found: dict[int, str] = {}
    for life in broken:
        begin = next((i for i in range(done, -1, -1) if whole[i : i + len(life.events)] == life.events), None)
        if begin is None:
            found[last] = _first_difference(whole, life.events, done)
            begin = done
        done = max(done, begin + len(life.events))
        last = life.broken[-1] if life.broken else last
    if not found and done < len(whole):
        found[last] = f"the run ended before {_line(whole[done])}"
    if not found and (differ := [n for n, d in plain[0].digests.items() if broken[-1].digests.get(n) != d]):
        found[last] = f"in the end {', '.join(differ)} differ"
    return found


def _first_difference(whole: list[Any], events: list[Any], done: int) -> str:
    """The line of a life that is not what it is in the plain run, from where that life can have begun at best."""
    names = [w[:2] for w in whole]
    fits = {i: _common(names[i:], [e[:2] for e in events]) for i in range(done, -1, -1)}
    at = max(fits, key=lambda i: fits[i])
    if not fits[at]:
        return f"{_line(events[0])} comes first, and {_line(whole[done]) if done < len(whole) else 'the end'} was to come"
    for want, has in zip(whole[at:], events, strict=False):
        if want != has:
            return f"{_line(has, want)} for {_line(want, has)}"
    return f"{_line(events[len(whole) - at])} for the end"


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many they have in common from the beginning."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _line(event: Any, beside: Any = (None, None, {})) -> str:
    """What it says, but for values that it has in common with another one of its name and step."""
    name, step, values = event
    same = beside[2] if list(beside[:2]) == [name, step] else {}
    return " ".join([name, str(step), *(f"{k}={v}" for k, v in values.items() if k not in same or same[k] != v)])


# -- runs -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """A subject as other processes find it: the class, or a function that makes a trainer of :func:`replicad.testing.check_trainer`."""

    name: str  #: of its rows
    module: str
    file: str
    attribute: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, subject: type[Subject]) -> Named:
        """A class at the top level of a file."""
        return cls(subject.name, "__main__", sys.modules[subject.__module__].__file__ or "", subject.__qualname__)


#: Runs a Python program as the ranks of a job under `replicad run` to its good end: (program, arguments, world).
Launch = Callable[[str, Sequence[str], int], None]
PROGRAM = "import torch\nfrom replicad.testing import conformance\nconformance.main()\n"


class Suite:
    """The runs of a subject of one world. ``launch`` runs a job under a daemon, ``env`` is the environment of plain processes, ``subject`` is at the top level of a file, and
    ``folder`` holds what the runs leave."""

    def __init__(self, subject: type[Subject] | Named, *, world: int, folder: Path, launch: Launch, env: Mapping[str, str], timeout: float = 600.0) -> None:
        self._subject = subject if isinstance(subject, Named) else Named.of(subject)
        self._world, self._folder, self._launch, self._env, self._timeout = world, folder, launch, env, timeout
        self._runs = 0

    @functools.cached_property
    def plain(self) -> list[list[Life]]:
        """What the ranks did without replicad."""
        return self._ran("plain", ())

    def through(self, how: str, *plan: Break, due: bool = True) -> Report:
        """Trains through these faults, in one job: each has to be of a later step than the one before. Without ``due`` the session forgets what follows a step, as under an adapter
        that does not handle it: a suite that finds nothing then is worth nothing."""
        plain, broken = self.plain, self._ran(how if due else f"{how} without due", plan)
        met = {i for rank in broken for life in rank for i in life.broken}
        differ = {i: "it did not happen" for i in range(len(plan)) if i not in met}
        for rank, (a, b) in enumerate(zip(plain, broken, strict=True)):
            for i, text in judge(a, b).items():
                differ.setdefault(i, f"rank {rank}: {text}")
        return Report([Row(self._subject.name, self._world, how, str(b), differ.get(i, "")) for i, b in enumerate(plan)])

    def _ran(self, how: str, plan: Sequence[Break]) -> list[list[Life]]:
        self._runs += 1
        into = self._folder / f"{self._subject.attribute}-{self._world}-{self._runs}"
        into.mkdir(parents=True)
        (into / "plan.json").write_text(json.dumps([[b.place, b.step, b.rank] for b in plan]))
        of = self._subject
        call = [str(into), of.module, of.file, of.attribute, *how.partition(" ")[::2], *of.arguments]
        if how == "plain":
            ranks(PROGRAM, call, self._world, self._env, self._timeout)
        else:
            self._launch(PROGRAM, call, self._world)
        return [lives((into / f"rank{rank}").read_text()) for rank in range(self._world)]


def port() -> int:
    """A port of this host that is free now. It is none that the kernel hands out by itself: another program would have it by the time that rank 0 listens there."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    others = [n for n in range(10_000, 65_536) if not low <= n <= high] or list(range(low, high + 1))
    while True:
        n = random.SystemRandom().choice(others)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", n)):
            return n


def ranks(program: str, call: Sequence[str], world: int, env: Mapping[str, str], timeout: float) -> None:
    """Runs a program in the processes that torchrun would start, to their good end."""
    common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, *call], env={**env, **common, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for r in range(world)
    ]
    said, end = "", time.monotonic() + timeout
    try:
        for p in processes:
            said += p.communicate(timeout=max(0.0, end - time.monotonic()))[0]
    except subprocess.TimeoutExpired as err:
        printed = err.stdout if isinstance(err.stdout, str) else (err.stdout or b"").decode(errors="replace")
        raise RuntimeError(f"the plain run has not ended after {timeout:g} s. It printed so far:\n{said}{printed or '(nothing)'}") from None
    finally:
        for p in processes:
            p.kill()
            p.communicate()
    if bad := [p.returncode for p in processes if p.returncode]:
        raise RuntimeError(f"the plain run failed (status {bad[0]}):\n{said}")


class Judged(Subject):
    """A trainer as a subject: with its session, at places that every trainer has."""

    def __init__(self, run: Run, module: Any, function: str) -> None:
        super().__init__(run)
        if not run.kept:
            from .. import alone

            alone.launched = lambda: False
        self._trainer = recorder.made(module, function, run.folder.parent / "work")

        def write(name: str, step: int, values: dict[str, str]) -> None:
            run.event(name, step, **_parts(values))

        self._record = recorder.Recorder(self._trainer, write, run.at)

    @property
    def session(self) -> Session:
        """The trainer's."""
        return self._trainer.session  # type: ignore[attr-defined, no-any-return]

    def train(self) -> None:
        """To the end."""
        with self._record.watching():
            self._trainer.train(self._record, None)

    def digests(self) -> Mapping[str, Any]:
        """Of the trainer's state."""
        return {k: recorder.plain(v) for k, v in self._trainer.state().items()}


def _parts(values: Mapping[str, str]) -> dict[str, str]:
    """A digest of each part."""
    parts: dict[str, dict[str, str]] = {}
    for name, text in values.items():
        part, _, path = name.partition("|")
        parts.setdefault(part, {})[path] = text
    return {part: leaves[""] if list(leaves) == [""] else digest(leaves) for part, leaves in parts.items()}


def _made(program: Any, name: str, run: Run) -> Subject:
    """The subject of a run."""
    kind = getattr(program, name)
    if isinstance(kind, type) and issubclass(kind, Subject):
        return kind(run)
    return Judged(run, program, name)


def main() -> None:
    """A process of a :class:`Suite`: FOLDER MODULE FILE NAME HOW CONTROL [ARGUMENT...]."""
    folder, module, file, name, how, control, *arguments = sys.argv[1:]
    sys.argv, trainee.running = [file, *arguments], True
    plan = [Break(*b) for b in json.loads(Path(folder, "plan.json").read_text())]
    if how == "plain":
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    else:
        rank, world = waiting.place()
    sys.path.insert(0, os.path.dirname(file))
    import torch

    os.environ["OMP_NUM_THREADS"] = "1"  # accelerate sets another number where none is given, and sums follow from it
    torch.set_num_threads(1)
    run = Run(Path(folder), rank, world, how, plan)
    program = load(module, file)
    random.seed(1)  # generators that no framework seeds
    if np := sys.modules.get("numpy"):
        np.random.seed(1)
    subject = _made(program, name, run)
    if control:
        subject.forget()

    def train(*_: Any) -> None:
        run.life()
        subject.train()

    if how == "raise":
        inprocess.wrap(lambda: subject.session)(train)()  # an adapter may make it in there
    else:
        train()
    from .. import rng

    digests = {**subject.digests(), "generators": rng.get()}
    if run.kept:
        run.noticed(subject.session.noticed, subject.noticed)
    run.digests(digests)
    if run.kept:
        subject.session.close()
