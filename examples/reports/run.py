"""Runs programs that people reported, undisturbed and hit by a fault, and says of each whether the hit run came to the same.

    python examples/reports/run.py              all rows: make reports
    python examples/reports/run.py gan valrng   these programs' rows

Each program was written anew in its smallest form. A row ends in one of four verdicts:

    equal    the digests are those of the undisturbed run
    said     they are not, and a line said so: at the launcher, when a process resumed, or before the fault
    refused  the session refused the program, with this text
    WRONG    anything else: other digests without a word, a crash, a run without an end

The exit status is 1 if a row is WRONG. Control rows must be WRONG: they show that the runner finds a difference.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
#: A run that has not ended after so many seconds has no end.
PATIENCE = 600.0


@dataclass(frozen=True)
class Row:
    """A program with its variant (``NAME=VALUE ...``), and the fault that hits it (``PLACE:STEP``) in a rank."""

    program: str
    fault: str
    variant: str = ""
    world: int = 1
    rank: int = 0
    arguments: tuple[str, ...] = ()
    said: tuple[str, ...] = ()  #: where a difference must be said, each of them; else anywhere is enough
    trains: bool = False  #: a refusal is WRONG
    control: bool = False
    needs: str = ""  #: a package

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.program, *self.arguments, self.variant)))

    @property
    def env(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.variant.split())


@dataclass(frozen=True)
class Verdict:
    """What a row came to."""

    kind: str
    text: str = ""

    def wrong(self, control: bool) -> bool:
        """Whether the table fails by it."""
        return (self.kind == "WRONG") is not control


@dataclass(frozen=True)
class Run:
    """How a job ended (None: it had no end), and what it printed."""

    status: int | None
    output: str
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", self.output.splitlines())

    def digests(self) -> list[str]:
        """By rank."""
        return sorted(m[0] for line in self.lines if (m := re.search(r"DIGEST .*", line)))


# -- rows -----------------------------------------------------------------------------------------------------------------


def both(program: str, *faults: str, variant: str = "", **more: object) -> list[Row]:
    """Rows for each fault, with the session's count and with the loop's own."""
    return [Row(program, fault, " ".join(filter(None, (variant, loop))), **more) for loop in ("LOOP=range", "LOOP=steps") for fault in faults]  # type: ignore[arg-type]


#: Who says of a generation what it lacks. What they say after the fault counts, too.
AFTER = ("launcher", "resume")

ROWS: list[Row] = [
    *(Row("bucketview", "backward:9", f"O={o}", world=3, rank=2) for o in ("vz", "v", "z", "vzc")),
    *(Row("zerosize", "backward:5", arguments=(o,), trains=True) for o in ("adamw", "sgd", "adam", "fused", "rmsprop", "adagrad")),
    *(Row("many", "backward:5", f"N={n}", trains=True) for n in (2000, 3000, 6000)),
    *both("criterion", "backward:9", said=("resume",)),
    *both("criterion", "backward:9", variant="VAR=given"),
    *both("teacher", "backward:9", world=2, said=AFTER),
    Row("teacher", "backward:9", "VAR=data", world=2),
    *both("teacher", "backward:9", variant="VAR=asks", world=2),
    *both("gan", "critic:7", "generator:7", variant="VAR=one", said=AFTER),
    *both("gan", "critic:7", "generator:8", variant="VAR=two", said=AFTER),
    Row("gan", "generator:7", "VAR=one SHARED=1 LOOP=steps"),
    Row("qat", "backward:15"),
    Row("qat", "backward:15", "STAGING=1"),
    *both("qat", "backward:9", "backward:15", variant="VAR=warm", said=AFTER),
    *both("plateau", "backward:9", "window:8", "after:8", variant="VAR=in", world=2, said=AFTER),
    *both("plateau", "backward:9", "after:8", variant="VAR=between", world=2, said=AFTER),
    *both("valrng", "backward:11", "evaluation:10"),
    *both("valrng", "backward:11", "evaluation:10", variant="VAR=preserved"),
    *both("valrng", "backward:11", variant="VAR=before"),
    Row("nanskip", "backward:17", "LOOP=steps"),
    Row("nanskip", "backward:22", "LOOP=steps"),
    Row("nanskip", "backward:15", "LOOP=range", control=True),  # iterations that nobody but the loop counts
    *both("nanskip", "backward:15", variant="VAR=updated"),
    *both("curriculum", "backward:15"),
    *both("curriculum", "backward:15", variant="VAR=both"),
    *(Row("dsrng", "backward:9", v) for v in ("WORKERS=0", "WORKERS=2", "VAR=added WORKERS=0", "VAR=added WORKERS=2")),
    *(Row("sam", "backward:9", v, world=2) for v in ("", "STAGING=1", "BOTH=1", "BASE=1", "BASE=1 DATA=1 VAR=in", "BASE=1 DATA=1 VAR=in STAGING=1")),
    *both("sam", "backward:9", "window:9", variant="BASE=1 VAR=in", world=2),
    *(Row("unfreeze", f"backward:{at}", f"VAR={v}") for v in ("group", "late", "flag", "asksgroup") for at in (9, 15)),
    *(Row("optims", "backward:9", arguments=(o,)) for o in ("muon", "lookahead", "adafactor", "rprop", "asgd", "tensor-lr")),
    Row("optims", "backward:9", "FIRST=1", arguments=("lookahead",)),
    Row("optims", "backward:9", arguments=("Prodigy",), needs="prodigyopt"),
    *(Row("optims", "backward:9", arguments=(o,), needs="pytorch_optimizer") for o in ("AdEMAMix", "SOAP", "Shampoo", "Lion", "Ranger21")),
    *(Row("rebind_moved", "end:10", v) for v in ("", "MOVE=0", "REBIND=0")),
]


# -- verdicts -------------------------------------------------------------------------------------------------------------

#: The launcher's status of a job that comes to the same fault again: do not requeue.
GIVEN_UP = 5
#: Errors of the package, in the last line of a trace.
REFUSAL = re.compile(r"replicad\.(?:errors\.)?(?:Mismatch|Unsupported|Invalid|SessionState|NoMemory|Refused): (.*)")
#: What says that a restart is another run, by who says it.
SAYS = {
    "launcher": re.compile(r"replicad run: .*\blacks\b.*"),
    "resume": re.compile(r"replicad: (?:a restart would lack|step \d+ lacks).*"),
    "explain": re.compile(r"EXPLAINED False"),
    "noticed": re.compile(r"replicad: .*(?:\ba (?:restart|process that resumes)\b|may be torn|the copy of step|begins with the same).*"),
}


def verdict(row: Row, straight: Run, hit: Run) -> Verdict:
    """What an undisturbed run and one that was hit say of a row."""
    for which, run in (("undisturbed", straight), ("hit", hit)):
        if run.status is None:
            return Verdict("WRONG", f"the {which} run has no end")
        if run.status == GIVEN_UP and (where := said(run)):
            return Verdict("said", f"the {which} run was given up, {spoken(where)}")
        if run.status != 0:
            text = refusal(run)
            return Verdict("WRONG" if row.trains or not text else "refused", text or f"the {which} run ended with status {run.status}: {run.lines[-1] if run.lines else ''}")
    if "FAULT " not in hit.output:
        return Verdict("WRONG", f"no fault came: no {row.fault}")
    if len(straight.digests()) != row.world:
        return Verdict("WRONG", "the undisturbed run has no digest of each rank")
    if hit.digests() == straight.digests():
        return Verdict("equal")
    where = said(hit)
    text = spoken(where)
    if not where:
        return Verdict("WRONG", "other digests, and nobody said so")
    if missing := [place for place in row.said if place not in where]:
        return Verdict("WRONG", f"other digests, and nothing said so at {' and '.join(missing)}; {text}")
    return Verdict("said", text)


def spoken(where: dict[str, str]) -> str:
    """What :func:`said` found, for the table."""
    return "; ".join(f"at {place}: {line}" for place, line in where.items())


def refusal(run: Run) -> str:
    """The text by which the package refused the program."""
    return next((m[1] for line in run.lines if (m := REFUSAL.search(line))), "")


def said(run: Run) -> dict[str, str]:
    """Where a line said that a restart is another run, and the first such line. What a process notices counts before the fault alone: later it is of no use."""
    found: dict[str, str] = {}
    before = True
    for line in run.lines:
        for place, pattern in SAYS.items():
            if (before or place in AFTER) and (m := pattern.search(line)):
                found.setdefault(place, m[0])
        before = before and "FAULT " not in line
    return found


# -- jobs -----------------------------------------------------------------------------------------------------------------


class Jobs:
    """Runs programs under a daemon whose environment is ``env``. ``python`` begins the command of each rank; undisturbed runs are kept for the next row."""

    def __init__(
        self, env: dict[str, str], folder: Path, python: Sequence[str] = (sys.executable,), binary: str = str(ROOT / "bin" / "replicad"), logs: Path | None = None
    ) -> None:
        drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        path = os.pathsep.join([str(ROOT / "python" / "src"), str(FOLDER)])
        self.env = {k: v for k, v in env.items() if k not in drop} | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.folder, self.python, self.binary, self.logs = folder, list(python), binary, logs
        self._straight: dict[tuple[object, ...], Run] = {}
        self._locks: defaultdict[tuple[object, ...], threading.Lock] = defaultdict(threading.Lock)  # rows side by side share an undisturbed run
        self._numbers = itertools.count()

    def verdict(self, row: Row) -> Verdict:
        """Runs a row."""
        key = (row.program, row.variant, row.world, row.arguments)
        with self._locks[key]:
            if key not in self._straight:
                self._straight[key] = self._run(row, {})
        straight = self._straight[key]
        hit = straight if straight.status != 0 else self._run(row, {"FAULT": row.fault, "FAULT_RANK": str(row.rank)})
        return verdict(row, straight, hit)

    def _run(self, row: Row, more: dict[str, str]) -> Run:
        job = f"report-{next(self._numbers)}-{row.program}"
        env = self.env | row.env | more | {"MARK": str(self.folder / f"{job}.mark")}
        command = [self.binary, "run", "--dev", "--job", job, "--world", str(row.world), "--min-copies", "1", "--ranks", ",".join(map(str, range(row.world)))]
        command += ["--", *self.python, str(FOLDER / f"{row.program}.py"), *row.arguments]
        run = self._ended(command, env)
        if self.logs:
            self.logs.mkdir(parents=True, exist_ok=True)
            (self.logs / f"{job}.log").write_text(f"{row.name} {more}\n{run.output}")
        return run

    def _ended(self, command: list[str], env: dict[str, str]) -> Run:
        with subprocess.Popen(command, env=env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                output, _ = process.communicate(timeout=PATIENCE)
                return Run(process.returncode, output)
            except subprocess.TimeoutExpired:
                process.terminate()
                output, _ = process.communicate()
                return Run(None, output)


def table(rows: Sequence[Row], judged: Callable[[Row], Verdict], side: int) -> Iterator[tuple[Row, Verdict, float]]:
    """Each row with its verdict, in order, some side by side."""

    def timed(row: Row) -> tuple[Row, Verdict, float]:
        began = time.monotonic()
        return row, judged(row), time.monotonic() - began

    with ThreadPoolExecutor(side) as pool:
        yield from pool.map(timed, rows)


def line(row: Row, found: Verdict, seconds: float) -> str:
    """A row of the table."""
    kind = f"{found.kind} (control: as it must be)" if row.control and not found.wrong(True) else found.kind
    return f"{row.name:46} {row.fault:14} {kind:8} {found.text:.240} [{seconds:.0f} s]"


def main() -> int:
    from replicad.testing.daemon import Daemon

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("programs", nargs="*", help="those whose rows are run (default: all)")
    p.add_argument("--side", type=int, default=2, help="jobs side by side")
    p.add_argument("--logs", type=Path, help="a folder for the output of each run")
    p.add_argument("--python", default=sys.executable, help="what begins the command of each rank")
    args = p.parse_args()
    rows = [r for r in ROWS if not args.programs or r.program in args.programs]
    left_out = [r for r in rows if r.needs and importlib.util.find_spec(r.needs) is None]
    rows = [r for r in rows if r not in left_out]
    wrong = []
    daemon = Daemon(str(ROOT / "bin" / "replicad"))
    with daemon as env:
        jobs = Jobs(env, Path(daemon.folder), shlex.split(args.python), logs=args.logs)
        for row, found, seconds in table(rows, jobs.verdict, args.side):
            print(line(row, found, seconds), flush=True)
            wrong += [row] if found.wrong(row.control) else []
    for row in left_out:
        print(f"{row.name:46} left out: {row.needs} is not installed")
    print(f"{len(rows)} rows, {len(wrong)} wrong{': ' if wrong else ''}{', '.join(f'{r.name} {r.fault}' for r in wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "python" / "src"))
    sys.exit(main())
