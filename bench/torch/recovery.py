"""How long a job stands still when it is broken, split by phase: the small GPT on three DDP ranks, in process.

    make bench-recovery     # or: python bench/torch/recovery.py --cases exception,warm --rounds 5
    .venv-peers/bin/python bench/torch/recovery.py --cases restart,torchft --state-mb 256,1024 --rounds 3

| case      | what happens                                                                                    |
|-----------|-------------------------------------------------------------------------------------------------|
| exception | a rank raises in its forward; nobody's process ends                                             |
| warm      | SIGKILL in a rank's forward; a process that waits (`--warm 1`) takes its place                   |
| restart   | SIGKILL in a rank's forward; the launcher forks a process from one that has imported torch       |
| restart-fresh | the same with `--preload none`: the launcher starts a process, which imports torch           |
| node      | all of a node falls silent: what it costs to be sure of that is `detected`                       |
| torchft   | its own way, where it is installed (.venv-peers): SIGKILL of one of two replicas, started again at once |

Milliseconds from the injection: `stopped` is when all survivors have stopped, taken down their groups and wait; `first step` is the
first new step on all ranks. A process that is started says how long its interpreter and its imports took (imports/sitecustomize.py):
both figures are of the same start, whatever else the machine does meanwhile. The machine must be quiet.

With `--state-mb` the model has so many MiB of parameters and AdamW state, two ranks train it, and each case has one turn in each round: a run
of its own with one fault. Both systems then have the same model, batch and number of ranks. By .venv-peers they have the same torch too.

torchft's phases are those of the replacement: `imports` are done, its model and manager are `made`, the other's state is `loaded`.
`first step` is the survivor's first one with both.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import peers

ROOT, HERE = peers.ROOT, Path(__file__).resolve().parent
#: By case: the demo's fault, and further flags.
CASES = {"exception": ("rank-raise", ["--warm", "1"]), "warm": ("rank-forward", ["--warm", "1"]), "restart": ("rank-forward", ["--preload", "ready"]), "restart-fresh": ("rank-forward", ["--preload", "none"]), "node": ("node", ["--warm", "1"])}
#: Of ranks with --state-mb: a step computes little, as its time is no matter here.
SMALL = {"--length": "16", "--batch": "1"}
PHASES = [("detected", "detected_ms"), ("stopped", "fenced_ms"), ("planned", "planned_ms"), ("resumed", "resumed_ms")]


def demo(case: str, faults: int, seed: int, state_mb: int) -> list[dict[str, float]]:
    """Each fault's phases, in ms."""
    fault, flags = CASES[case]
    program = [sys.executable, str(ROOT / "examples" / "torch" / "gpt.py"), "--inprocess"]
    if state_mb:
        program += ["--micro", "1", "--workers", "0", "--early", *flat(SMALL)]
        flags = [*flags, "--world", "2", "--groups", "0,0", "--slots", "2", "--state-mb", str(state_mb), "--steps", "160" if case == "restart" else "20"]  # time to import once more
    else:
        program += ["--width", "32", "--batch", "4"]
        flags = [*flags, "--world", "3", "--steps", str(240 * (faults + 1))]
    trainer = " ".join(program)
    with tempfile.TemporaryDirectory(prefix="replicad-b-") as folder, tempfile.TemporaryDirectory(prefix="replicad-i-") as starts:
        done = subprocess.run(
            [str(ROOT / "bin" / "replicad"), "demo", "--plain", "--trainer", trainer, "--faults", ",".join([fault] * faults), "--seed", str(seed), "--pace", "50ms",
             "--report", folder, *flags],
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'python' / 'src'}:{HERE / 'imports'}", "OMP_NUM_THREADS": "1", "IMPORTS_TO": starts},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        started = [imported for _, imported in sorted(tuple(map(float, f.read_text().split())) for f in Path(starts).iterdir())]
        if not Path(folder, "report.json").exists():
            raise RuntimeError(f"{case}: no report\n{done.stdout[-3000:]}")
        report = json.loads(Path(folder, "report.json").read_text())
    if report["verdict"] != "bit-equal" or any(f["steps_lost"] for f in report["faults"]):
        raise RuntimeError(f"{case}: {report['verdict']}\n{done.stdout[-3000:]}")
    first = [x["value"] for x in report["figures"] if x["name"].startswith("recovery from ")]
    rows = [{name: f[key] for name, key in PHASES} | {"first step": ms} for f, ms in zip(report["faults"], first, strict=True)]
    if case.startswith("restart"):  # each fault had one process started, after all others
        for row, imported in zip(rows, started[-faults:], strict=True):
            row["start and imports"] = imported * 1e3
    return rows


def flat(flags: dict[str, str]) -> list[str]:
    return [word for flag in flags.items() for word in flag]


def torchft(rounds: int, state_mb: int) -> list[dict[str, float]]:
    """The same model under torchft: the survivor's next committed step, and the first one with both."""
    python = str(ROOT / ".venv-peers" / "bin" / "python")
    program = str(HERE / "torchft_rank.py")
    port = peers.free_port()
    env = os.environ | {"PYTHONPATH": str(ROOT / "python" / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
    out: list[dict[str, float]] = []
    started: list[subprocess.Popen[str]] = []

    flags = ["--state-mb", str(state_mb), "--timeout", "60", *flat(SMALL)] if state_mb else []

    def start(replica: int) -> subprocess.Popen[str]:
        p = subprocess.Popen([python, program, "--replica", str(replica), *flags], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(p)
        return p

    lighthouse = [str(Path(python).with_name("torchft_lighthouse")), "--min_replicas", "1", "--join_timeout_ms", "1000", "--bind", f"127.0.0.1:{port}"]
    with subprocess.Popen(lighthouse, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as light:
        try:
            survivor, other = start(0), start(1)
            for _ in range(rounds):
                both(survivor.stdout, 8 if state_mb else 40)
                other.send_signal(signal.SIGKILL)
                killed = time.time_ns()
                other.wait()
                other = start(1)
                alone = step(survivor.stdout, killed)
                again = both(survivor.stdout, 1, killed)
                phases = {name: (t - killed) / 1e6 for name, t in until_step(other.stdout)}
                out.append({"survivor's next step": (alone["t"] - killed) / 1e6, **phases, "first step": (again - killed) / 1e6})
        finally:
            for p in [*started, light]:
                p.kill()
            for p in started:
                p.wait()  # its memory is the next turn's
    return out


def until_step(lines: IO[str] | None) -> Iterator[tuple[str, int]]:
    """What a replacement did before its first step, and when, in ns."""
    assert lines is not None
    for line in lines:
        said = json.loads(line)
        if said["event"] == "step":
            return
        yield {"start": "imports"}.get(said["event"], said["event"]), said["t"]


def step(lines: IO[str] | None, after: int = 0) -> dict[str, Any]:
    """The next committed step after a time in ns; what was printed before it is still in the pipe."""
    assert lines is not None
    for line in lines:
        if '"step"' in line and json.loads(line)["t"] > after:
            return dict(json.loads(line))
    raise RuntimeError("torchft: the survivor ended")


def both(lines: IO[str] | None, count: int, after: int = 0) -> int:
    """When the last of so many steps with two replicas was committed, in ns."""
    while True:
        s = step(lines, after)
        if s["replicas"] == 2:
            count -= 1
            if count == 0:
                return int(s["t"])


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", default=",".join([*CASES, "torchft"]))
    p.add_argument("--rounds", type=int, default=5, help="faults of each case")
    p.add_argument("--state-mb", default="0", help="MiB of parameters and AdamW state of each rank, or several such sizes with commas; 0: the small model")
    p.add_argument("--json", type=Path, help="file for all figures, a line a fault")
    p.add_argument("--seed", type=int, default=11)
    args = p.parse_args()
    for size in map(int, args.state_mb.split(",")):
        print(f"{f'{size} MiB of state' if size else 'small model'}, load average {os.getloadavg()[0]:.1f}", flush=True)
        rows: dict[str, list[dict[str, float]]] = {case: [] for case in args.cases.split(",")}
        turns, faults = (args.rounds, 1) if size else (1, args.rounds)
        for k in range(turns):
            for case, of_it in rows.items():
                more = torchft(faults, size) if case == "torchft" else demo(case, faults, args.seed + k, size)
                of_it += more
                if args.json:
                    with args.json.open("a") as f:
                        f.writelines(json.dumps({"case": case, "state_mb": size, "load": os.getloadavg()[0], "ms": row}) + "\n" for row in more)
        for case, of_it in rows.items():
            print(f"{case:13} {', '.join(summary(of_it))}", flush=True)
        print(f"load average {os.getloadavg()[0]:.1f} at the end", flush=True)
    return 0


def summary(rows: list[dict[str, float]]) -> list[str]:
    """The median and the most of each phase of one case."""
    parts = [f"{k} {statistics.median(r[k] for r in rows):.0f} (most {max(r[k] for r in rows):.0f})" for k in rows[0]]
    if "detected" in rows[0]:
        parts.append(f"beyond detection {statistics.median(r['first step'] - r['detected'] for r in rows):.0f}")
    if "start and imports" in rows[0]:
        parts.append(f"beyond detection, start and imports {statistics.median(r['first step'] - r['detected'] - r['start and imports'] for r in rows):.0f}")
    return parts


if __name__ == "__main__":
    sys.exit(main())
