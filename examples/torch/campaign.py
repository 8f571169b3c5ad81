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
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "python" / "src"))

from replicad import testing
from replicad.testing.daemon import Daemon

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
    "fsdp1-2": (["fsdp1.py", "--micro", "2"], [0, 1]),
    "fsdp1-2-inprocess": (["fsdp1.py", "--micro", "2", "--use-orig-params", "1", "--inprocess"], [0, 1]),
    "hsdp1-4-inprocess": (["fsdp1.py", "--micro", "2", "--shards", "2", "--inprocess"], [0, 1, 0, 1]),
    "zero2": (["zero.py", "--micro", "2"], [0, 1]),
    "zero2-inprocess": (["zero.py", "--micro", "2", "--inprocess"], [0, 1]),
    "hsdp4": (["fsdp.py", "--micro", "2", "--shards", "2"], [0, 1, 0, 1]),
    "hsdp4-inprocess": (["fsdp.py", "--micro", "2", "--shards", "2", "--inprocess"], [0, 1, 0, 1]),
    "torchrun2": (["gpt.py"], [0, 0]),
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
                bad += verdict not in ("bit-equal", "not here") or lost != 0
                print(f"{job:16} {faults:34} {seed:5} {verdict:10} {lost:4} {recovery:24} {time.monotonic() - began:4.0f}", flush=True)
    print(f"{bad} of the runs were not as they must be" if bad else "all runs ended bit-equal, no step was lost")
    return 1 if bad else 0


def torchrun(script: str, faults: list[str], seed: int, steps: int) -> tuple[str, int, str]:
    """The job under `replicad exec -- torchrun` on one node, against the same without replicad; faults of ranks alone."""
    kinds = {f: ("forward", "raise") if f == "rank-raise" else (f.removeprefix("rank-"), "kill") for f in faults}
    if any(where not in testing.PLACES for where, _ in kinds.values()):
        return "not here", 0, "-"
    env = os.environ | {"PYTHONPATH": str(ROOT / "python" / "src"), "OMP_NUM_THREADS": "1"}
    program = [str(HERE / script), "--width", "16", "--batch", "4", "--seed", str(seed), "--steps", str(steps * (len(faults) + 1)), "--pace", "30ms"]
    plain = subprocess.run([sys.executable, *program, "--baseline", "--world", "2"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with tempfile.TemporaryDirectory(prefix="replicad-c-") as folder, Daemon(str(ROOT / "bin" / "replicad"), folder) as own:
        where = Path(folder, "faults")
        drawn = [testing.Faults.seeded(seed + i, world=2, steps=steps, count=1, places=[w], kinds=[k], rank=-1, folder=where).plan[0] for i, (w, k) in enumerate(kinds.values())]
        plan = testing.Faults([replace(f, step=f.step + i * steps) for i, f in enumerate(drawn)], rank=-1, folder=where)
        plan.write()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "20", "--monitor-interval", "0.2"]
        done = subprocess.run(
            [str(ROOT / "bin" / "replicad"), "exec", "--dev", "--job", "job", "--world", "2", "--min-copies", "1", "--", *launcher, *program],
            env=env | {"XDG_STATE_HOME": own["XDG_STATE_HOME"], "TRAINING_FAULTS": str(where)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        happened = plan.happened()
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{") and line.endswith("}")]
    same = _digests(plain.stdout) == _digests(done.stdout) != {}
    if done.returncode != 0 or len(happened) != len(faults) or not same:
        print(done.stdout[-6000:])
        return "failed", 0, "-"
    again = [next(e for e in events if e["event"] == "ready" and e["t"] > f["t"]) for f in happened]
    # A torchrun restart ends every process: the step before the one that was struck may not have been copied yet.
    lost = sum(max(0, f["step"] - 2 - e["step"]) for f, e in zip(happened, again, strict=True))
    times = [next(e["t"] for e in events if e["event"] == "step" and e["t"] > a["t"]) - f["t"] for f, a in zip(happened, again, strict=True)]
    return "bit-equal", lost, " ".join(f"{t / 1e6:.0f}" for t in times)


def _digests(text: str) -> dict[int, list[str]]:
    done = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}") and '"done"' in line]
    return {e["rank"]: [e["digest"], e["state_digest"], e["private_digest"]] for e in done}


def run(job: str, faults: list[str], seed: int, steps: int) -> tuple[str, int, str]:
    """One demo: its verdict, the steps that were lost, and how long each recovery took."""
    (script, *flags), groups = JOBS[job]
    if job.startswith("torchrun"):
        return torchrun(script, faults, seed, steps)
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
