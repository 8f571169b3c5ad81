"""How long a job stands still when it is broken, split by phase: the small GPT on three DDP ranks, in process.

    make bench-recovery     # or: python bench/torch/recovery.py --cases exception,warm --rounds 5

| case      | what happens                                                                                    |
|-----------|-------------------------------------------------------------------------------------------------|
| exception | a rank raises in its forward; nobody's process ends                                             |
| warm      | SIGKILL in a rank's forward; a process that waits (`--warm 1`) takes its place                   |
| restart   | SIGKILL in a rank's forward; the launcher starts a process, which imports torch                  |
| node      | all of a node falls silent: what it costs to be sure of that is `detected`                       |
| torchft   | its own way, where it is installed (.venv-peers): SIGKILL of one of two replicas, started again at once |

Milliseconds from the injection: `stopped` is when all survivors have stopped, taken down their groups and wait; `first step` is the
first new step on all ranks. A process that is started says how long its interpreter and its imports took (imports/sitecustomize.py):
both figures are of the same start, whatever else the machine does meanwhile. The machine must be quiet.
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
from pathlib import Path
from typing import IO, Any

import peers

ROOT, HERE = peers.ROOT, Path(__file__).resolve().parent
#: By case: the demo's fault, and further flags.
CASES = {"exception": ("rank-raise", ["--warm", "1"]), "warm": ("rank-forward", ["--warm", "1"]), "restart": ("rank-forward", []), "node": ("node", ["--warm", "1"])}
PHASES = [("detected", "detected_ms"), ("stopped", "fenced_ms"), ("planned", "planned_ms"), ("resumed", "resumed_ms")]


def demo(case: str, faults: int, seed: int) -> list[dict[str, float]]:
    """Each fault's phases, in ms."""
    fault, flags = CASES[case]
    trainer = " ".join([sys.executable, str(ROOT / "examples" / "torch" / "gpt.py"), "--inprocess", "--width", "32", "--batch", "4"])
    with tempfile.TemporaryDirectory(prefix="replicad-b-") as folder, tempfile.TemporaryDirectory(prefix="replicad-i-") as starts:
        done = subprocess.run(
            [str(ROOT / "bin" / "replicad"), "demo", "--plain", "--trainer", trainer, "--world", "3", "--faults", ",".join([fault] * faults), "--seed", str(seed),
             "--steps", str(240 * (faults + 1)), "--pace", "50ms", "--report", folder, *flags],
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'python' / 'src'}:{HERE / 'imports'}", "OMP_NUM_THREADS": "1", "IMPORTS_TO": starts},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        started = [imported for _, imported in sorted(tuple(map(float, f.read_text().split())) for f in Path(starts).iterdir())]
        report = json.loads(Path(folder, "report.json").read_text())
    if report["verdict"] != "bit-equal" or any(f["steps_lost"] for f in report["faults"]):
        raise RuntimeError(f"{case}: {report['verdict']}\n{done.stdout[-3000:]}")
    first = [x["value"] for x in report["figures"] if x["name"].startswith("recovery from ")]
    rows = [{name: f[key] for name, key in PHASES} | {"first step": ms} for f, ms in zip(report["faults"], first, strict=True)]
    if case == "restart":  # each fault had one process started, after all others
        for row, imported in zip(rows, started[-faults:], strict=True):
            row["start and imports"] = imported * 1e3
    return rows


def torchft(rounds: int) -> list[dict[str, float]]:
    """The same model under torchft: the survivor's next committed step, and the first one with both."""
    python = str(ROOT / ".venv-peers" / "bin" / "python")
    program = str(HERE / "torchft_rank.py")
    port = peers.free_port()
    env = os.environ | {"PYTHONPATH": str(ROOT / "python" / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
    out: list[dict[str, float]] = []
    started: list[subprocess.Popen[str]] = []

    def start(replica: int) -> subprocess.Popen[str]:
        p = subprocess.Popen([python, program, "--replica", str(replica)], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(p)
        return p

    lighthouse = [str(Path(python).with_name("torchft_lighthouse")), "--min_replicas", "1", "--join_timeout_ms", "1000", "--bind", f"127.0.0.1:{port}"]
    with subprocess.Popen(lighthouse, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as light:
        try:
            survivor, other = start(0), start(1)
            for _ in range(rounds):
                both(survivor.stdout, 40)
                other.send_signal(signal.SIGKILL)
                killed = time.time_ns()
                other.wait()
                other = start(1)
                alone = step(survivor.stdout, killed)
                again = both(survivor.stdout, 1, killed)
                out.append({"survivor's next step": (alone["t"] - killed) / 1e6, "first step": (again - killed) / 1e6})
        finally:
            for p in [*started, light]:
                p.kill()
    return out


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
    p.add_argument("--seed", type=int, default=11)
    args = p.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}")
    for case in args.cases.split(","):
        rows = torchft(args.rounds) if case == "torchft" else demo(case, args.rounds, args.seed)
        parts = [f"{k} {statistics.median(r[k] for r in rows):.0f} (most {max(r[k] for r in rows):.0f})" for k in rows[0]]
        if "detected" in rows[0]:
            parts.append(f"beyond detection {statistics.median(r['first step'] - r['detected'] for r in rows):.0f}")
        if "start and imports" in rows[0]:
            parts.append(f"beyond detection, start and imports {statistics.median(r['first step'] - r['detected'] - r['start and imports'] for r in rows):.0f}")
        print(f"{case:10} {', '.join(parts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
