"""Does a trainer go on from its own checkpoint as if nothing had been? And with a session?"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import conformance
from .check import Program, binary, launched
from .daemon import Daemon
from .recorder import Trainer

__all__ = ["Differs", "TrainerReport", "check_trainer"]

#: Makes a trainer, whose files lie in the folder that it is given.
MakeTrainer = Callable[[Path], Trainer]
PROGRAM = "import torch\nfrom replicad.testing import recorder\nrecorder.main()\n"
#: Two values of so many characters are printed.
SHORT = 48
#: What to do about a part that differs first, by how its name begins.
REMEDIES = {
    "step": "the count of steps goes on elsewhere: save it, and have record.step() count over a resume",
    "forwards": "the count of micro-batches is not in the checkpoint, or the first step after it is made of fewer: save it, or save where a step is whole",
    "samples": "the loader goes on elsewhere, shuffles anew or draws otherwise: save its place, and the generators that it draws from",
    "generator python": "dropout, augmentation or shuffling draw otherwise: save random.getstate(), and put it back after the loader has begun",
    "generator numpy": "augmentation or shuffling draw otherwise: save numpy.random.get_state(), and put it back after the loader has begun",
    "generator cpu": "dropout and shuffling draw otherwise: save torch.get_rng_state(), and put it back after the loader has begun, which draws",
    "generator cuda": "dropout draws otherwise: save torch.cuda.get_rng_state(), and put it back",
}


@dataclass(frozen=True)
class Differs:
    """What of a run differs first from another one of the same trainer, in one part of it."""

    part: str  #: "loss", "samples", "generator cpu", "optimizer": a value, what was seen, or a part of the state
    step: int
    where: str  #: "after the load", "in the step", or the event
    how: str
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.part}: {self.how}"


@dataclass
class TrainerReport:
    """What :func:`check_trainer` saw. It prints as tables, the first difference below."""

    steps: int  #: of the whole run
    saved_at: int
    parts: list[str]  #: what was compared
    differs: list[Differs] = field(default_factory=list)  #: the first difference of each part, the first of all before the others
    unlike: str = ""  #: why the checkpoint could not be judged: two runs that nobody interrupted differ, too
    session: conformance.Report | None = None  #: the same with a session, killed
    no_session: str = ""  #: why there is none

    @property
    def equal(self) -> bool:
        """Whether everything was."""
        return not self.unlike and not self.differs and (self.session is None or self.session.equal)

    @property
    def first(self) -> str:
        """What differed first, what followed from it in that step, and what to do. Empty where nothing did."""
        if not self.differs:
            return ""
        return f"{self.what}. {_remedy(self.differs[0])}"

    @property
    def what(self) -> str:
        """The same without what to do."""
        one = self.differs[0]
        same = [d for d in self.differs if (d.step, d.where, d.rank) == (one.step, one.where, one.rank)]
        begin = f"step {one.step}" + (f", {one.where}" if one.where not in ("in the step", one.part) else "") + (f", rank {one.rank}" if one.rank else "")
        return f"{begin}: {'; '.join(map(str, same))}"

    def __str__(self) -> str:
        if self.unlike:
            return self.unlike
        lines = [f"{self.steps} steps, and again from the checkpoint of step {self.saved_at}:", "", "| what | equal | first difference |", "|---|---|---|"]
        by = {d.part: d for d in reversed(self.differs)}
        for part in dict.fromkeys([*self.parts, *by]):
            d = by.get(part)
            lines.append(f"| {part} | yes | |" if d is None else f"| {part} | NO | step {d.step}, {d.where}: {d.how} |")
        lines += ["", self.first or "Every value was equal, bit for bit."]
        if self.session is not None:
            lines += ["", "With a session, killed:", "", str(self.session)]
        elif self.no_session:
            lines += ["", f"With a session: {self.no_session}."]
        return "\n".join(lines)


def check_trainer(
    make_trainer: MakeTrainer,
    *,
    at: int | None = None,
    world: int = 1,
    session: bool | None = None,
    timeout: float = 600.0,
    program: str | None = None,
    arguments: Sequence[str] | None = None,
) -> TrainerReport:
    """Trains to the end, twice; then goes on in a new process from the checkpoint that the trainer itself has written after step ``at`` (default: half way), and compares events,
    losses, samples, generators and state, step by step. No daemon is needed for that.

    ``make_trainer(folder)`` is at the top level of a module or program, and makes everything: a model, its data, an optimizer. It returns a :class:`Trainer`:
    ``of_lightning(...)``, ``of_huggingface(...)``, or an object with ``train(record, resume)``, ``save(path)`` and ``state()``.

    Where the trainer has a session (``session``), and there is a replicad program, the same is asked of that: a rank is killed in a forward, in an update and after a step
    (:mod:`replicad.testing.conformance`). ``session=False`` leaves that out, ``session=True`` wants it. ``world`` ranks train as under torchrun; ``program`` and ``arguments`` are
    as for :func:`replicad.testing.check_resume`, ``timeout`` is in seconds, for each run.

    ``ValueError`` for arguments that make no sense, ``FileNotFoundError`` where there is no replicad program for ``session=True``, ``RuntimeError`` with its output where a run
    fails, also by what ``make_trainer`` returns.
    """
    if world < 1 or (at is not None and at < 1):
        raise ValueError(f"check_trainer: world={world}, at={at}: want at least 1 for each")
    made = Program.of("check_trainer", make_trainer, arguments)
    daemon = binary("check_trainer", program) if session or (session is None and _found(program)) else ""
    folder = Path(tempfile.mkdtemp(prefix="replicad-check-"))
    try:
        runs = _Runs(folder, made, world, timeout)
        report = judged(runs.train, at)
        if not (why := _no_session(report, runs, session, daemon)):
            report.session = _kept(runs, daemon, report.steps)
        report.no_session = why
        return report
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _no_session(report: TrainerReport, runs: _Runs, session: bool | None, daemon: str) -> str:
    """Why the trainer is not looked at with its session."""
    if report.unlike:
        return "not run: plain runs differ"
    if session is False:
        return "not run: session=False"
    if not runs.kept and session:
        raise ValueError(f"check_trainer: session=True, and the trainer has none: give {runs.made.function} a replicad.Session, and the trainer an attribute `session` that is it")
    if not runs.kept:
        return "not run: the trainer has no session"
    return "" if daemon else "not run: no replicad program on the path: give program=, or set REPLICAD"


def _found(program: str | None) -> bool:
    return bool(program or os.environ.get("REPLICAD") or shutil.which("replicad"))


# -- runs -----------------------------------------------------------------------------------------------------------------------

#: What a process wrote: name, step, values by PART|PATH.
Line = tuple[str, int, dict[str, str]]


class _Runs:
    """Runs of one trainer, each in new processes and in the same folder."""

    def __init__(self, folder: Path, made: Program, world: int, timeout: float) -> None:
        self.folder, self.made, self.world, self.timeout = folder, made, world, timeout
        self.kept = False  # it has a session
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("REPLICAD_")} | {"PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
        self._number = 0

    def train(self, save: int = -1, resume: str = "") -> list[list[Line]]:
        """What each rank did."""
        self._number += 1
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        if resume:
            (self.folder / "at").rename(self.folder / "work")
        call = [str(self.folder), self.made.module, self.made.file, self.made.function, str(self._number), str(save), resume, *self.made.arguments]
        conformance.ranks(PROGRAM, call, self.world, self.env, self.timeout)
        ranks = [_lines((self.folder / str(self._number) / f"rank{r}").read_text()) for r in range(self.world)]
        self.kept = ranks[0].pop(0)[2]["kept"] == "True"
        return [[line for line in lines if line[0] != "begin"] for lines in ranks]


def _lines(text: str) -> list[Line]:
    return [(name, step, {k: str(v) for k, v in values.items()}) for name, step, values in map(json.loads, text.splitlines())]


def judged(train: Callable[..., list[list[Line]]], at: int | None = None) -> TrainerReport:
    """The trainer's own checkpoint. ``train(save, resume)`` is a run: what each rank did."""
    first = train()
    steps = max((step for name, step, _ in first[0] if name == "step"), default=0)
    if steps < 2:
        raise ValueError(f"check_trainer: the run made {steps} steps: want at least 2, and record.step(n) after each")
    if at is None:
        at = steps // 2
    if at >= steps:
        raise ValueError(f"check_trainer: at={at}: want a step before the last, which is {steps}")
    second = train(at)
    saved = [_saved(lines, at) for lines in second]
    whole = [[line for line in lines if line[0] not in ("saved", "restored")] for lines in second]
    parts = _all_parts(line for lines in whole for line in lines)
    report = TrainerReport(steps, at, parts)
    if differs := _first_of_each([compare(a, b) for a, b in zip(first, whole, strict=True)]):
        third = train()
        report.differs = differs
        alike = not _first_of_each([compare(a, b) for a, b in zip(first, third, strict=True)])
        report.unlike = _unlike(report.what, at if alike else 0)
        return report
    third = train(at, saved[0][1])
    tails = [lines[i:] for lines, (i, _) in zip(second, saved, strict=True)]
    report.differs = _first_of_each([_used(a, compare(a, b)) for a, b in zip(tails, third, strict=True)])
    return report


def _saved(lines: Sequence[Line], at: int) -> tuple[int, str]:
    """Where a run had saved, and the checkpoint."""
    for i, (name, _, values) in enumerate(lines):
        if name == "saved":
            return i + 1, values["path"]
    raise ValueError(f"check_trainer: nothing was saved after step {at}: want record.step({at}), and a checkpoint in the path that save() is given")


def _unlike(first: str, at: int) -> str:
    if at:
        return (
            f"Saving a checkpoint changes the run, so that nothing can be said of a resume: a run that saved after step {at} differs from one that did not, first in {first}. "
            "Look for what save() and what runs with it draw or change."
        )
    return (
        f"Two runs that nobody interrupted differ, so that nothing can be said of a resume: first in {first}. Seed every generator in make_trainer, use "
        "torch.use_deterministic_algorithms(True), and leave out what depends on times."
    )


# -- the judgement ----------------------------------------------------------------------------------------------------------------


def compare(whole: Sequence[Line], other: Sequence[Line]) -> Iterator[Differs]:
    """What another run did otherwise, in the order in which the first one did it. The other one may begin later, if all of ``whole`` lies in it."""
    there = dict(_named(other))
    for key, (name, step, want) in _named(whole):
        where = _where(name)
        if (line := there.pop(key, None)) is None:
            yield Differs("the end" if name == "end" else name, step, where, "it is missing")
            continue
        yield from (Differs(part, step, where, how) for part, how in _differ(want, line[2]))
    for name, step, _ in there.values():
        yield Differs(name, step, _where(name), "in one go it does not come there")


def _where(name: str) -> str:
    """A line's place in its step."""
    return {"step": "in the step", "restored": "after the load"}.get(name, name)


def _used(whole: Sequence[Line], differs: Iterator[Differs]) -> Iterator[Differs]:
    """Without generators that nothing draws from: they are others in each process."""
    states: dict[str, set[str]] = {}
    for _, _, values in whole:
        for key, text in values.items():
            states.setdefault(key.partition("|")[0], set()).add(text)
    return (d for d in differs if not d.part.startswith("generator") or len(states[d.part]) > 1)


def _named(lines: Sequence[Line]) -> Iterator[tuple[tuple[str, int, int], Line]]:
    """Lines by name, step, and how many of that there were before."""
    seen: dict[tuple[str, int], int] = {}
    for line in lines:
        n = seen[line[:2]] = seen.get(line[:2], -1) + 1
        yield (*line[:2], n), line


def _differ(want: Mapping[str, str], has: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The parts of a line that differ, and how."""
    for part in _all_parts([("", 0, {**want, **has})]):
        a, b = ({k.partition("|")[2]: v for k, v in side.items() if k.partition("|")[0] == part} for side in (want, has))
        if names := [n for n in [*a, *(n for n in b if n not in a)] if a.get(n) != b.get(n)]:
            yield part, _how(part, names[0], len(names), a, b)


def _how(part: str, first: str, count: int, want: Mapping[str, str], has: Mapping[str, str]) -> str:
    """What to say of a part of which so many values differ."""
    if part == "samples" or part.startswith("generator"):
        return f"from forward {int(first.strip('[]')) + 1} on"
    of = f"{count} of {len({*want, *has})}, first {first}" if len({*want, *has}) > 1 else ""
    a, b = want.get(first, "nothing"), has.get(first, "nothing")
    return ", ".join(filter(None, [of, f"{b} for {a}" if len(a) + len(b) <= SHORT else ""])) or "another"


def _all_parts(lines: Iterator[Line] | Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(k.partition("|")[0] for _, _, values in lines for k in values))


def _first_of_each(ranks: Sequence[Iterator[Differs]]) -> list[Differs]:
    """The first difference of each part: the earliest step, and the order within it."""
    found: dict[str, Differs] = {}
    for rank, differs in enumerate(ranks):
        for d in differs:
            if d.part not in found or d.step < found[d.part].step:
                found[d.part] = Differs(d.part, d.step, d.where, d.how, rank)
    return sorted(found.values(), key=lambda d: d.step)  # within a step as it came


def _remedy(first: Differs) -> str:
    for name, text in REMEDIES.items():
        if name in (first.part, first.part.partition(":")[0]):
            return text[0].upper() + text[1:] + "."
    if first.where == "after the load":
        return f"The checkpoint has no {first.part}, or not all of it, or the load puts it back otherwise: save it, and load it before the next step."
    if first.how == "it is missing":
        return "What was to follow the step is not done again: save behind it, or do it after the load."
    return "All that is compared was equal until then: something else goes into the step that the checkpoint does not have. Return it from state() to see it."


# -- with a session ---------------------------------------------------------------------------------------------------------------


def _kept(runs: _Runs, program: str, steps: int) -> conformance.Report:
    """The suite that adapters pass, through kills at places that every trainer has."""
    plan: list[conformance.Break] = []
    for i, (place, step) in enumerate((("forward", max(1, steps // 4)), ("step", steps // 2), ("after", 3 * steps // 4))):
        if not plan or step > plan[-1].step:
            plan.append(conformance.Break(place, step, i % runs.world))
    daemon = Daemon(program)

    def launch(text: str, arguments: Sequence[str], world: int) -> None:
        shutil.rmtree(runs.folder / "kept" / "work", ignore_errors=True)  # of the plain run: paths are values, too
        status, said = launched(daemon, "kept", [sys.executable, "-c", text, *arguments], runs.timeout, world=world)
        if status:
            raise RuntimeError(f"the run with a session failed (status {status}):\n{said}")

    with daemon:
        named = conformance.Named(runs.made.function, runs.made.module, runs.made.file, runs.made.function, runs.made.arguments)
        suite = conformance.Suite(named, world=runs.world, folder=runs.folder / "kept", launch=launch, env=runs.env, timeout=runs.timeout)
        return suite.through("kill", *plan)
