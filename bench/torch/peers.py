"""What each system costs a step of the same job: replicad, DCP's async_save, lm-resiliency (GEMINI), DLRover, torchft.

    make bench-peers        # or: .venv-peers/bin/python bench/torch/peers.py --systems replicad,dcp --rounds 3
    .venv-peers/bin/python bench/torch/peers.py --systems replicad,dlrover --world 1 --state-mb 1024 --batch 1 --blocks 2 --block 5

Ranks of one job (DDP over Gloo) on this machine, a copy at every step where the system makes copies. Each system has one turn in each
round. Each row is the median of the rounds; `overhead` is against plain DDP in the same processes, in alternating blocks. `held` is how
long the system's calls and hooks hold the training thread in a step, p50 and p99 (cost.py). With replicad among the systems, the last
lines are its `held` over that of the others. The machine must be quiet: both cores are the job's. With one rank of them, the second core
is free for the copy.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).resolve().parent / "cost.py"
SYSTEMS = ["none", "replicad", "dcp", "lm-resiliency", "dlrover", "torchft"]
sys.path.insert(0, str(ROOT / "python" / "src"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def lighthouse() -> Iterator[dict[str, str]]:
    """torchft's coordinator."""
    port = free_port()
    program = Path(sys.executable).with_name("torchft_lighthouse")
    with subprocess.Popen(
        [str(program), "--min_replicas", "2", "--join_timeout_ms", "1000", "--bind", f"127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as p:
        try:
            yield {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        finally:
            p.send_signal(signal.SIGKILL)


@contextmanager
def daemon() -> Iterator[dict[str, str]]:
    """A replicad daemon of its own."""
    from replicad.testing.daemon import Daemon

    with tempfile.TemporaryDirectory(prefix="replicad-b-") as folder, Daemon(str(ROOT / "bin" / "replicad"), folder) as env:
        yield {"XDG_STATE_HOME": env["XDG_STATE_HOME"]}


def once(system: str, world: int, flags: list[str]) -> dict[str, Any]:
    """One run of the job: the figures that its rank 0 printed."""
    command = [sys.executable, str(PROGRAM), "--system", system, *flags]
    around: Any = {"replicad": daemon, "torchft": lighthouse}.get(system, lambda: nullcontext({}))
    if system == "replicad":
        command = [str(ROOT / "bin" / "replicad"), "run", "--dev", "--job", "cost", "--world", str(world), "--min-copies", "1", "--", *command]
    else:
        port = str(free_port())  # DLRover names its sockets and memory by the id: with one for all runs it finds those of the run before
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-port", port, "--rdzv-id", f"cost-{port}", *command[1:]]
    with around() as env, tempfile.TemporaryFile("w+") as out:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "python" / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | env
        with subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True) as job:
            try:
                code = job.wait(timeout=900)
            finally:
                if job.poll() is None:  # torchrun's ranks have sessions of their own, and only torchrun ends them
                    job.terminate()
                    with suppress(subprocess.TimeoutExpired):
                        job.wait(timeout=30)
                with suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)  # helpers that a system leaves behind
        out.seek(0)
        lines = out.read().splitlines()
    for line in lines:
        if line.startswith('{"system"'):
            return dict(json.loads(line))
    said = "\n".join(x for x in lines if "rank0" in x or "Error" in x)
    raise RuntimeError(f"{system}: no figures, exit code {code}:\n{said[-2500:]}")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--systems", default=",".join(SYSTEMS))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--world", type=int, default=2, help="ranks")
    p.add_argument("--json", help="file for all figures, a line each")
    args, flags = p.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `finally`, as its jobs have sessions of their own
    print(f"load average {os.getloadavg()[0]:.1f} at the start; other flags go to cost.py: {' '.join(flags) or 'none'}", flush=True)
    rows: dict[str, list[dict[str, Any]]] = {system: [] for system in args.systems.split(",")}
    failed = 0
    for _ in range(args.rounds):
        for system, of_it in rows.items():
            try:
                of_it.append(once(system, args.world, flags))
            except (RuntimeError, subprocess.TimeoutExpired) as err:
                print(f"{system:14} {err}", flush=True)
                failed += 1
                continue
            if args.json:
                with open(args.json, "a") as f:
                    f.write(json.dumps(of_it[-1]) + "\n")
    print(
        f"{'system':14} {'state':>7} {'step p50, ms':>16} {'p99, ms':>16} {'overhead':>9} {'stall, ms':>10} {'held, ms':>16} {'copies':>9}"
        f"   (without / with; median of {args.rounds}; load average {os.getloadavg()[0]:.1f} at the end)"
    )
    rows = {system: of_it for system, of_it in rows.items() if of_it}
    for of_it in rows.values():
        print(row(of_it))
    for system in [s for s in rows if "replicad" in rows and s not in ("none", "replicad")]:
        ratio = middle(rows["replicad"], "held_ms_p50", "with") / middle(rows[system], "held_ms_p50", "with")
        print(f"held, p50: replicad / {system} = {ratio:.3f}")
    return 1 if failed else 0


def middle(rows: list[dict[str, Any]], *keys: str) -> float:
    """The median over the rounds of what the keys lead to."""
    values = []
    for r in rows:
        for k in keys:
            r = r[k]
        values.append(float(r))  # type: ignore[arg-type]
    return statistics.median(values)


def row(rows: list[dict[str, Any]]) -> str:
    """A line of the table, of the rounds of one system."""
    step, worst = (f"{middle(rows, k, 'without'):.0f} / {middle(rows, k, 'with'):.0f}" for k in ("step_ms_p50", "step_ms_p99"))
    held = f"{middle(rows, 'held_ms_p50', 'with'):.2f}, {middle(rows, 'held_ms_p99', 'with'):.2f}"
    copies = f"{middle(rows, 'copies'):.0f}/{middle(rows, 'steps'):.0f}"
    return (
        f"{rows[0]['system']:14} {middle(rows, 'state_mb'):4.0f} MB {step:>16} {worst:>16} {middle(rows, 'overhead_p50'):+9.1%} {middle(rows, 'stall_ms'):10.1f} {held:>16}"
        f" {copies:>9}"
    )


if __name__ == "__main__":
    sys.exit(main())
