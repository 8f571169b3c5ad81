"""Seeds times jobs times faults: each run must end bit for bit as the undisturbed one, with no step lost.

    python examples/torch/campaign.py --seeds 1-5 --jobs gpt2,gpt3,gpt3-inprocess,conv2,conv3-inprocess --faults node,leader

Prints a row a run and ends with status 1 if any differed, lost a step or failed. `make campaign` runs all of it, which takes hours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: By name: the program with its flags, and the replica group of each rank.
JOBS = {
    "gpt2": (["gpt.py"], [0, 0]),
    "gpt3": (["gpt.py"], [0, 0, 0]),
    "gpt2-inprocess": (["gpt.py", "--inprocess"], [0, 0]),
    "gpt3-inprocess": (["gpt.py", "--inprocess"], [0, 0, 0]),
    "lora2": (["lora.py"], [0, 0]),
    "lora2-inprocess": (["lora.py", "--inprocess"], [0, 0]),
    "conv2": (["convnet.py"], [0, 0]),
    "conv3": (["convnet.py"], [0, 0, 0]),
    "conv3-inprocess": (["convnet.py", "--inprocess"], [0, 0, 0]),
    "fsdp2": (["fsdp.py", "--micro", "2"], [0, 1]),
    "fsdp2-inprocess": (["fsdp.py", "--micro", "2", "--inprocess"], [0, 1]),
    "hsdp4": (["fsdp.py", "--micro", "2", "--shards", "2"], [0, 1, 0, 1]),
    "hsdp4-inprocess": (["fsdp.py", "--micro", "2", "--shards", "2", "--inprocess"], [0, 1, 0, 1]),
}
FAULTS = [
    "rank-forward", "rank-backward", "rank-accumulate", "rank-window", "rank-updated", "rank-capture", "rank-resume", "rank-again", "rank-raise", "rank-hang",
    "daemon", "node", "leader",
]  # fmt: skip
#: A rank that hangs is missed by its peers when a collective takes longer than this.
HANG = ["--timeout", "10s"]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", default="1-3", help="as 1-3 or 1,5,9")
    p.add_argument("--jobs", default=",".join(JOBS), help="some of " + ",".join(JOBS))
    p.add_argument("--faults", default=",".join(FAULTS), help="each in a run of its own; several in one run are joined by +, as rank-raise+node")
    p.add_argument("--steps", type=int, default=60, help="steps for each fault of a run")
    args = p.parse_args()
    first, _, last = args.seeds.partition("-")
    seeds = list(range(int(first), int(last) + 1)) if last else [int(s) for s in args.seeds.split(",")]
    bad = 0
    print(f"{'job':16} {'faults':34} {'seed':>5} {'verdict':10} {'lost':>4} {'first new step, ms':24} {'s':>4}", flush=True)
    for job in args.jobs.split(","):
        for faults in args.faults.split(","):
            for seed in seeds:
                began = time.monotonic()
                verdict, lost, recovery = run(job, faults.split("+"), seed, args.steps)
                bad += verdict != "bit-equal" or lost != 0
                print(f"{job:16} {faults:34} {seed:5} {verdict:10} {lost:4} {recovery:24} {time.monotonic() - began:4.0f}", flush=True)
    print(f"{bad} of the runs were not as they must be" if bad else "all runs ended bit-equal, no step was lost")
    return 1 if bad else 0


def run(job: str, faults: list[str], seed: int, steps: int) -> tuple[str, int, str]:
    """One demo: its verdict, the steps that were lost, and how long each recovery took."""
    (script, *flags), groups = JOBS[job]
    if "rank-hang" in faults:
        flags += HANG
    with tempfile.TemporaryDirectory(prefix="replicad-c-") as folder:
        trainer = " ".join([sys.executable, str(HERE / script), "--width", "16", "--batch", "4", *flags])
        done = subprocess.run(
            [str(ROOT / "bin" / "replicad"), "demo", "--plain", "--trainer", trainer, "--groups", ",".join(map(str, groups)), "--faults", ",".join(faults), "--seed", str(seed),
             "--steps", str(steps * (len(faults) + 1)), "--pace", "30ms", "--report", folder],
            env=os.environ | {"PYTHONPATH": str(ROOT / "python" / "src"), "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            report = json.loads(Path(folder, "report.json").read_text())
        except FileNotFoundError:
            print(done.stdout[-6000:])
            return "failed", 0, "-"
    times = [next((x["value"] for x in report["figures"] if x["name"].startswith(f"recovery from {f['kind']},")), f["resumed_ms"]) for f in report["faults"]]
    return report["verdict"], sum(f["steps_lost"] for f in report["faults"]), " ".join(f"{t or 0:.0f}" for t in times)


if __name__ == "__main__":
    sys.exit(main())
