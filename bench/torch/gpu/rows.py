"""What `make gpu-test` runs, and what it makes of it: rules alone. A row is a job with faults; :func:`judge` says of what its runs printed what is right.

Verdicts: ``ok``; ``over`` (a figure is beyond its limit); ``WRONG`` (other bits than those of an undisturbed run, or no fault came); ``failed``; ``hung`` (not over in its time);
``skipped`` (this machine lacks what it needs); ``no time``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
Facts = Mapping[str, Any]

GIB = 1 << 30
#: All of it ends within so many seconds.
ALL = 600.0
#: What a process may take to start, in starts of a process that has nothing beside it; and what a launcher and a recovery add, in seconds.
SLOW, RECOVERY = 3.0, 8.0
#: A row is begun if so much of its time is left: most need a third.
LEAST = 0.4
#: Seconds from an exception to the first new step in process; of a process that was started for a lost one beside its start; and those that one takes to end by an exception.
IN_PROCESS, BEYOND_START, ENDS = 1.0, 2.0, 2.0
#: Of the copy engine's own rate; of a step; of the time in which the device could be busy; of the tensors' bytes; of the steps.
OF_ENGINE, STALL, BUSY, PINNED, COPIED = 0.8, 0.03, 0.9, 1.05, 0.9
#: What a hundred restarts may leave behind: bytes of the process and of the device.
GROWTH, DEVICE_GROWTH = 32 << 20, 8 << 20


@dataclass(frozen=True)
class Run:
    """How a job ended (None: it was ended, as its time was over), and what it printed."""

    status: int | None
    output: str
    events: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", [json.loads(line) for line in self.output.splitlines() if line.startswith('{"gpu-test"')])

    def of(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind, in order."""
        return [e for e in self.events if e["event"] == event]

    @property
    def last(self) -> str:
        """The line that says most of why it failed."""
        lines = [line for line in self.output.splitlines() if line.strip() and not line.startswith("{")]
        errors = [line for line in lines if "Error" in line.split(" ", 1)[0]]
        return (errors or lines or ["it printed nothing"])[-1].strip()


@dataclass(frozen=True)
class Result:
    """A line of the table."""

    row: str
    verdict: str
    figure: str = ""
    limit: str = ""
    value: float | None = None  #: the figure as a number, in the unit that it names


Judge = Callable[[Run, "Run | None"], Iterator[Result]]


@dataclass(frozen=True)
class Row:
    """A job. ``flags`` are train.py's, or those of another ``program``. ``lives``: how many processes start one after the other; ``work``: seconds beside that."""

    name: str
    flags: tuple[str, ...] = ()
    program: str = "train.py"
    judge: Judge | None = None
    world: int = 1
    lives: int = 1
    work: float = 5.0
    alone: bool = False  #: its times count, so nothing runs beside it
    gpus: int = 1
    backend: str = "gloo"
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: bool = False  #: it says something with --device cpu as well
    control: bool = False  #: it must come out WRONG

    @property
    def trains(self) -> bool:
        """Whether its digest is compared with that of an undisturbed run."""
        return self.program == "train.py"

    @property
    def faults(self) -> int:
        """How many faults its plan has."""
        return len(parsed(self.flags[self.flags.index("--plan") + 1])) if "--plan" in self.flags else 0

    def limit(self, start: float) -> float:
        """How many seconds it may take, where a process starts in so many. Behind a job whose times count comes the undisturbed run."""
        return (self.lives + (self.alone and self.trains)) * (SLOW * start + RECOVERY) + self.work


def parsed(plan: str) -> list[tuple[str, str, int]]:
    """A plan as what, where and when, one for each fault."""
    found = []
    for word in filter(None, plan.split(",")):
        what, place, steps = word.split(":")
        first, _, last = steps.partition("-")
        found += [(what, place, step) for step in range(int(first), int(last or first) + 1)]
    return found


# -- what a row needs ---------------------------------------------------------------------------------------------------------


def lacks(row: Row, facts: Facts, device: str) -> str:
    """What this machine lacks for a row, or nothing."""
    if device == "cpu":
        return "" if row.cpu else "needs a GPU"
    if len(facts["gpus"]) < row.gpus:
        return f"needs {row.gpus} GPUs, there are {len(facts['gpus'])}" if facts["gpus"] else "needs a GPU, there is none"
    if row.backend not in facts["backends"]:
        return f"needs {row.backend}, which torch {facts['torch']} lacks"
    return ""


# -- verdicts -----------------------------------------------------------------------------------------------------------------


def judge(row: Row, hit: Run, straight: Run | None) -> list[Result]:
    """What comes of a row. ``straight`` is the undisturbed run."""
    for which, run in (("", hit), ("the undisturbed run: ", straight)):
        if run is None:
            continue
        if run.status is None:
            return [Result(row.name, "hung", f"{which}not over in its time")]
        if run.status != 0:
            return [Result(row.name, "failed", f"{which}status {run.status}: {run.last}")]
    if row.trains and (wrong := differences(row, hit, straight)):
        return [Result(row.name, "ok" if row.control and "differ" in wrong else "WRONG", wrong, "must differ" if row.control else "")]
    if row.control:
        return [Result(row.name, "WRONG", "the digests are equal", "must differ")]
    found = list(row.judge(hit, straight)) if row.judge else [Result("", "ok", "bits equal" if row.trains else "")]
    return [Result(" ".join(filter(None, (row.name, r.row))), r.verdict, r.figure, r.limit, r.value) for r in found]


def differences(row: Row, hit: Run, straight: Run | None) -> str:
    """Why the state at the end is not that of the undisturbed run, or nothing."""
    if (came := len(hit.of("fault"))) != row.faults:
        return f"{came} faults of {row.faults} came"
    assert straight is not None
    ends = [{e["rank"]: e["digests"] for e in run.of("done")} for run in (hit, straight)]
    if any(sorted(end) != list(range(row.world)) for end in ends):
        return "not every rank came to its end"
    parts = sorted({f"{part} (rank {rank})" for rank, of in ends[0].items() for part, digest in of.items() if digest != ends[1][rank][part]})
    return f"differ: {', '.join(parts)}" if parts else ""


def within(what: str, value: float, limit: float, unit: str, *, least: bool = False, digits: int = 2, beside: str = "") -> Result:
    """A figure beside its limit, which is the most it may be, or the ``least``. ``beside`` stands before it."""
    good = value >= limit if least else value <= limit
    figure = ", ".join(filter(None, (beside, f"{value:.{digits}f} {unit}".strip())))
    return Result(what, "ok" if good else "over", figure, f"{'>=' if least else '<='} {limit:.{digits}f} {unit}".strip(), value)


def recoveries(world: int) -> Judge:
    """For each place of a fault: seconds from there to the first new step of all ranks. Of a process that was started anew, its start is taken off."""

    def of(hit: Run, _: Run | None) -> Iterator[Result]:
        by_place: dict[str, list[tuple[float, float]]] = {}
        for fault in hit.of("fault"):
            by_place.setdefault(f"{fault['what']} in {fault['place']}", []).append(recovery(hit, fault, world))
        for what, times in by_place.items():
            took, start = (statistics.median(column) for column in zip(*times, strict=True))
            beyond = BEYOND_START + ENDS * what.startswith("raise")
            yield within(what, took - start, beyond, "s beyond the start", beside=f"{took:.2f} s") if start else within(what, took, IN_PROCESS, "s")

    return of


def recovery(run: Run, fault: Event, world: int) -> tuple[float, float]:
    """Seconds from a fault to the first new step of all ranks, and those that a process which was started for it took for its start."""
    later = [e for e in run.events if e["t"] > fault["t"]]
    first: dict[int, int] = {}
    for e in later:
        if e["event"] == "step" and e["epoch"] > fault["epoch"]:
            first.setdefault(e["rank"], e["t"])
    end = max(first.values()) if len(first) == world else fault["t"]
    starts = [e["age"] for e in later if e["event"] == "start" and e["t"] <= end]
    return (end - fault["t"]) / 1e9, max(starts, default=0.0)


def same_process(hit: Run, straight: Run | None) -> Iterator[Result]:
    """The restart was in process."""
    yield ended_in(hit, 1, "in process")


def new_process(hit: Run, straight: Run | None) -> Iterator[Result]:
    """The process was replaced."""
    yield ended_in(hit, 2, "in a new process")


def ended_in(hit: Run, want: int, text: str) -> Result:
    """Bits are equal, and so many processes saw to it."""
    pids = len({e["pid"] for e in hit.of("start")})
    return Result("", "ok" if pids == want else "WRONG", f"bits equal, {text}" if pids == want else f"bits equal, by {pids} processes", f"{want} process{'es' * (want > 1)}")


def flat(hit: Run, straight: Run | None) -> Iterator[Result]:
    """What restarts leave behind: the least of ten after the third, against the least of the last ten."""
    looks = hit.of("memory")[3:]
    for what, most, scale, unit in (
        ("host", GROWTH, 1 << 20, "MiB"), ("device", DEVICE_GROWTH, 1 << 20, "MiB"), ("pinned", 0, 1 << 20, "MiB"), ("threads", 0, 1, ""), ("descriptors", 0, 1, ""),
    ):  # fmt: skip
        before, after = (min(e[what] for e in part) for part in (looks[:10], looks[-10:]))
        yield within(what, (after - before) / scale, most / scale, f"{unit} more".strip(), digits=0, beside=f"{before / scale:.0f} to {after / scale:.0f}")


def captures(hit: Run, straight: Run | None) -> Iterator[Result]:
    """The copy to the stage beside the copy engine's own rate, and what copies cost a step."""
    (e,) = hit.of("capture")
    gb = e["bytes"] / 1e9
    yield Result("copy engine, pinned memory", "ok", f"{gb / e['engine']:.1f} GB/s, {gb:.2f} GB", "", gb / e["engine"])
    found = [
        within("device to stage", e["engine"] / e["stage"], OF_ENGINE, "of the copy engine", least=True, beside=f"{gb / e['stage']:.1f} GB/s"),
        Result("stage to arena", "ok", f"{gb / e['arena']:.1f} GB/s", "", gb / e["arena"]),
        within("stall of a step", e["with"] / e["without"] - 1, STALL, "of a step", digits=3, beside=f"{(e['with'] - e['without']) * 1e3:.1f} ms of {e['without'] * 1e3:.0f}"),
        within("steps copied", e["copied"] / e["steps"], COPIED, "of all", least=True, beside=f"{e['copied']} of {e['steps']}"),
    ]
    if e["device"] != "cpu":
        found += [
            within("pinned bytes", e["pinned"] / e["bytes"], PINNED, "of the tensors' bytes"),
            Result("stages are pinned", "ok" if e["all_pinned"] else "WRONG", str(e["all_pinned"]), "True"),
        ]
    yield from found if e["device"] != "cpu" else map(unlimited, found)


def busy(hit: Run, straight: Run | None) -> Iterator[Result]:
    """How much of the time the device was busy, where the host launches for two fifths of a step."""
    (e,) = hit.of("busy")
    r = within("", e["work"] / e["step"], BUSY, "of the time", least=True)
    yield r if e["device"] != "cpu" else unlimited(r)


def unlimited(r: Result) -> Result:
    """A figure of a CPU that stands in a device's place, where limits say nothing."""
    return Result(r.row, "ok", r.figure, "", r.value)


# -- rows ---------------------------------------------------------------------------------------------------------------------

#: A plan that tries a restart in process and a new process.
BOTH = ("--inprocess", "--plan", "raise:backward:5,kill:window:8")


def variant(name: str, *flags: str, cpu: bool = False, **more: Any) -> Row:
    """A way to train, through an exception and a kill."""
    return Row(name, (*BOTH, *flags), lives=2, cpu=cpu, **more)


def rows(state_mb: int, restarts: int) -> list[Row]:
    """All rows, the most telling first. ``state_mb`` is the state that is copied, ``restarts`` how often a process restarts itself."""
    hung = [
        Row(
            f"NCCL of two ranks, peer killed, TORCH_NCCL_ASYNC_ERROR_HANDLING={how}", ("--inprocess", "--behind", "--plan", "kill:forward:5"), world=2, lives=2, work=40,
            gpus=2, backend="nccl", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": how}, judge=recoveries(2), alone=True,
        )
        for how in ("1", "2", "3")
    ]  # fmt: skip
    aborted = [
        Row(f"{backend} of one rank, aborted behind a step", ("--inprocess", "--behind", "--plan", "abort:after:6"), lives=2, backend=backend)
        for backend in ("nccl", "nccl2")
    ]  # fmt: skip
    return [
        Row("control: generators not kept", ("--inprocess", "--plan", "raise:backward:5", "--lose-generators"), cpu=True, control=True),
        Row("capture:", ("capture", "--state-mb", str(state_mb)), "rates.py", captures, work=40, alone=True, cpu=True),
        Row("device busy, no buffer on the device", ("busy",), "rates.py", busy, work=15, alone=True, cpu=True),
        Row("device busy, a buffer on the device", ("busy", "--buffer"), "rates.py", busy, work=15, alone=True, cpu=True),
        Row(
            "in process, two ranks:", ("--inprocess", "--steps", "20", "--plan", "raise:forward:4,raise:backward:7,raise:window:10,raise:after:13"), judge=recoveries(2),
            world=2, alone=True, cpu=True,
        ),
        Row(
            "in process, two ranks:", ("--inprocess", "--steps", "16", "--plan", "kill:forward:4,kill:backward:7,kill:window:10"), judge=recoveries(2),
            world=2, lives=4, alone=True, cpu=True,
        ),
        Row("by restart:", ("--steps", "16", "--plan", "raise:backward:4,kill:forward:7,kill:window:10"), judge=recoveries(1), lives=4, alone=True, cpu=True),
        Row(
            f"{restarts} restarts in process:", ("--inprocess", "--steps", str(restarts + 4), "--plan", f"raise:backward:2-{restarts + 1}"), judge=flat, work=0.8 * restarts,
            backend="nccl", alone=True, cpu=True,
        ),
        variant("dropout and noise on the device", "--noise", cpu=True),
        Row("a graph captured beside the worker, captured again after a restart", (*BOTH, "--graph", "anew", "--behind"), lives=2),
        Row("a graph captured beside the worker, kept over a restart", (*BOTH, "--graph", "kept", "--behind"), lives=2),
        Row("an optimizer on a stream of its own", (*BOTH, "--optimizer", "side", "--behind"), lives=2),
        Row("a sticky error (device assert)", ("--inprocess", "--plan", "assert:backward:6"), judge=new_process, lives=2, work=35),
        Row("out of device memory in a step", ("--inprocess", "--plan", "oom:forward:6"), judge=same_process),
        *aborted,
        *(variant(f"optimizer {name}", "--optimizer", name, cpu="capturable" not in name) for name in (
            "adamw", "adamw-fused", "adamw-capturable", "adamw-capturable-fused", "adamw-foreach", "adamw-single", "sgd", "sgd-foreach", "sgd-fused",
        )),
        variant("GradScaler, float16, a step that overflows", "--scaler", cpu=True),
        variant("bfloat16 parameters", "--bfloat16", cpu=True),
        *hung,
    ]  # fmt: skip


# -- the table ----------------------------------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """Markdown."""
    lines = [f"| {r.row} | {r.figure} | {r.limit} | {r.verdict} |".replace("\n", " ") for r in results]
    return "\n".join(["| row | figure | limit | verdict |", "|---|---|---|---|", *lines])


def status(results: Sequence[Result]) -> int:
    """1: something is wrong; 2: nothing is, but figures are beyond their limits; 77: nothing was run; 3: it would be 0, but there was no time for some."""
    verdicts = {r.verdict for r in results}
    if verdicts & {"WRONG", "failed", "hung"}:
        return 1
    if "over" in verdicts:
        return 2
    if "no time" in verdicts:
        return 3
    return 0 if "ok" in verdicts else 77
