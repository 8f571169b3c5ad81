"""Torch jobs of gigabytes of state: a rank is killed, a node, a holder while it sends; each run must end bit for bit as the undisturbed one.

    python examples/torch/sizes.py                         all of it (`make sizes-test`): an hour on two cores, 22 GiB of free memory
    python examples/torch/sizes.py --cases gpt-1024        one case

A row for each fault, in milliseconds from it. Ends with status 1 if a run differed, lost a step or failed, and with 2, before anything is started,
where the machine has too little free memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Small batches: what a step computes is no matter here, and a state of gigabytes has its own pace.
SMALL = ["--micro", "1", "--batch", "1", "--length", "16", "--workers", "0", "--inprocess"]


@dataclass(frozen=True)
class Case:
    """A job of two ranks, and what happens to it in one run after the other. Two slots hold a step each."""

    script: str
    state: int  # MiB of each rank
    groups: str
    needs: int  # GiB of free memory
    faults: tuple[str, ...]  # of one run each
    steps: int = 20

    def run(self, faults: str, seed: int, replicad: Path, keep: Path) -> dict[str, Any]:
        """One demo: its report."""
        trainer = " ".join([sys.executable, str(HERE / self.script), *SMALL])
        done = subprocess.run(
            [str(replicad), "demo", "--plain", "--trainer", trainer, "--world", "2", "--groups", self.groups, "--state-mb", str(self.state), "--slots", "2", "--warm", "1",
             "--steps", str(self.steps), "--faults", faults, "--seed", str(seed), "--report", str(keep)],
            env=os.environ | {"PYTHONPATH": str(ROOT / "python" / "src"), "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            report: dict[str, Any] = json.loads((keep / "report.json").read_text())
        except FileNotFoundError:
            print(done.stdout[-6000:])
            return {"verdict": "failed", "faults": [], "figures": []}
        if " had all of " in done.stdout:  # the holder was killed behind its transfer, not in it
            report["verdict"] = "too late"
        return report


#: A rank's memory: parameters and AdamW state, a third of that for gradients, and two slots; with a third copy or without a twin, mirrors of two slots.
CASES = {
    "gpt-64": Case("gpt.py", 64, "0,0", 4, ("rank-forward", "node", "holder"), 40),
    "fsdp-64": Case("fsdp.py", 64, "0,1", 4, ("rank-forward", "node", "holder"), 40),
    "fsdp-256": Case("fsdp.py", 256, "0,1", 8, ("rank-forward", "node", "holder")),
    "gpt-1024": Case("gpt.py", 1024, "0,0", 13, ("rank-forward", "node", "holder")),
    "gpt-3072": Case("gpt.py", 3072, "0,0", 22, ("rank-forward", "node", "holder-daemon")),
    "fsdp-1024": Case("fsdp.py", 1024, "0,1", 20, ("rank-forward", "node", "holder")),
}


def free() -> float:
    """GiB that processes can have now."""
    line = next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemAvailable:"))
    return int(line.split()[1]) / (1 << 20)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", default="gpt-1024,fsdp-1024,gpt-3072", help="some of " + ",".join(CASES))
    p.add_argument("--faults", help="instead of a case's own; several in one run are joined by +")
    p.add_argument("--steps", type=int, help="instead of a case's own")
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--replicad", type=Path, default=ROOT / "bin" / "replicad")
    args = p.parse_args()
    if unknown := [c for c in args.cases.split(",") if c not in CASES]:
        p.error(f"--cases {','.join(unknown)}: want some of {','.join(CASES)}")
    cases = {c: CASES[c] for c in args.cases.split(",")}
    if (needs := max(c.needs for c in cases.values())) > (has := free()):
        small = [c for c in CASES if CASES[c].needs <= has]
        fits = f"--cases {','.join(small)} fits" if small else "no case fits"
        print(f"sizes: {', '.join(cases)} need {needs} GiB of free memory, and {has:.1f} are available (MemAvailable): end other programs; {fits}", file=sys.stderr)
        return 2
    bad = 0
    print(
        f"{'case':10} {'fault':14} {'verdict':10} {'lost':>4} {'detected':>8} {'fenced':>7} {'planned':>8} {'moved, MiB':>10} {'verified':>8} {'resumed':>8} {'first step':>10} {'s':>5}  load",
        flush=True,
    )
    for name, case in cases.items():
        for faults in [args.faults] if args.faults else case.faults:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="replicad-s-") as keep:
                report = replace(case, steps=args.steps or case.steps).run(faults.replace("+", ","), args.seed, args.replicad, Path(keep))
            took, verdict = time.monotonic() - began, report["verdict"]
            bad += verdict != "bit-equal" or any(f["steps_lost"] for f in report["faults"])
            for f in report["faults"] or [{"kind": faults, "steps_lost": 0}]:
                first = next((x["value"] for x in report["figures"] if x["name"].startswith(f"recovery from {f['kind']},")), None)
                phases = [f.get(x) for x in ("detected_ms", "fenced_ms", "planned_ms", "moved_bytes", "verified_ms", "resumed_ms")]
                phases[3] = phases[3] and phases[3] / (1 << 20)
                cells = ["-" if v is None else f"{v:.0f}" for v in (*phases, first)]
                print(
                    f"{name:10} {f['kind']:14} {verdict:10} {f['steps_lost']:4} {cells[0]:>8} {cells[1]:>7} {cells[2]:>8} {cells[3]:>10} {cells[4]:>8} {cells[5]:>8} {cells[6]:>10} {took:5.0f}"
                    f"  {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    print(f"{bad} of the runs were not as they must be" if bad else "all runs ended bit-equal, no step was lost")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
