"""What a copy of the state at every step costs a training step.

    replicad daemon --dev &
    replicad run --dev --job overhead --world 1 --min-copies 1 -- python bench/torch/overhead.py

Two equal models are trained in one process, one of them in a session. Blocks of steps of the one and of the other follow each other, so that both see
the same machine; `overhead` is the median over pairs of neighbouring blocks. One torch thread leaves a core to spare (on two), `--threads 2` leaves none. The last line is a JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import torch

import replicad


def quantile(values: list[float], q: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--width", type=int, default=1024)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--blocks", type=int, default=150, help="pairs of blocks")
    p.add_argument("--block", type=int, default=5, help="steps of a block")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    models, optimizers = {}, {}
    for replicated in (True, False):
        torch.manual_seed(1)
        layers = [m for _ in range(args.layers) for m in (torch.nn.Linear(args.width, args.width), torch.nn.GELU())]
        models[replicated] = torch.nn.Sequential(*layers)
        optimizers[replicated] = torch.optim.AdamW(models[replicated].parameters(), lr=1e-4)
    x, y = torch.randn(args.batch, args.width), torch.randn(args.batch, args.width)
    times: dict[bool, list[float]] = {True: [], False: []}
    with replicad.Session(model=models[True], optimizer=optimizers[True]) as session:
        session.resume()

        def step(replicated: bool) -> float:
            model, optimizer = models[replicated], optimizers[replicated]
            began = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.mse_loss(model(x), y).backward()
            if replicated:
                with session.step():
                    optimizer.step()
            else:
                optimizer.step()
            return time.perf_counter() - began

        for _ in range(3):
            step(True)
            step(False)
        ratios = []
        for block in range(args.blocks):
            sums = {}
            for replicated in (True, False) if block % 2 else (False, True):  # a drift of the machine's speed favours neither
                step(replicated)  # the first of a block waits for, or lacks, the copy of the other kind's last
                took = [step(replicated) for _ in range(args.block)]
                times[replicated] += took
                sums[replicated] = sum(took)
            ratios.append(sums[True] / sums[False])
        stats = session.stats()
        size = sum(t.numel() * t.element_size() for t in models[True].parameters()) * 3
    copy = stats.capture_seconds / max(stats.captures, 1)
    plain, kept = (quantile(times[k], 0.5) for k in (False, True))
    print(
        json.dumps(
            {
                "threads": args.threads,
                "cores": os.cpu_count(),
                "state_mb": round(size / 1e6),
                "copy_ms": round(copy * 1e3, 1),
                "copy_of_step": round(copy / plain, 3),
                "step_ms_p50": {"without": round(plain * 1e3, 1), "with": round(kept * 1e3, 1)},
                "step_ms_p99": {"without": round(quantile(times[False], 0.99) * 1e3, 1), "with": round(quantile(times[True], 0.99) * 1e3, 1)},
                "overhead": round(quantile(ratios, 0.5) - 1, 4),
                "overhead_least_most": [round(min(ratios) - 1, 4), round(max(ratios) - 1, 4)],
                "captures": stats.captures,
                "skipped": stats.skipped,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
