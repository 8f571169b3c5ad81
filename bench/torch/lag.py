"""How long after the end of its block a step is committed on the whole job.

    replicad daemon --dev &
    replicad run --dev --job lag --world 2 --min-copies 1 -- python bench/torch/lag.py --step-ms 50

The ranks meet in a collective in each step, as those of data-parallel training do: ranks that never meet drift apart, and a step is committed when the last of them is done.
They sleep for the rest of a step's time, so that cores are free. A thread looks at the committed step twice a millisecond. `--loop steps` loops over session.steps(), `--loop loader` gives the session the loop's loader, `--loop range` neither: a step is over
when the next one begins, when the next batch is asked for, or when its block ends. The last line of rank 0 is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterable

import torch
import torch.distributed as dist
from overhead import quantile

import replicad
from replicad.data import Loader
from replicad.store import init_process_group


class Lags:
    """The time from the end of each step's block to its commit, by a thread that looks."""

    def __init__(self, session: replicad.Session) -> None:
        self.ended: dict[int, float] = {}
        self.seconds: list[float] = []
        self._session, self._stop = session, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        seen = self._session.committed
        while not self._stop.wait(0.0005):
            committed, now = self._session.committed, time.perf_counter()
            self.seconds += [now - self.ended[step] for step in range(seen + 1, committed + 1) if step in self.ended]
            seen = max(seen, committed)

    def __enter__(self) -> Lags:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--step-ms", type=float, default=50, help="how long a rank sleeps in each step")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--loop", choices=["steps", "loader", "range"], default="steps")
    args = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = Loader(torch.utils.data.TensorDataset(torch.randn(512, 256)), 8, seed=1, rank=0, world=1)
    behind = []
    with replicad.Session(model, optimizer, data=loader if args.loop == "loader" else ()) as session:
        start, batches = session.resume(), loader.endless()
        init_process_group(session)
        steps: Iterable[int] = session.steps(args.steps) if args.loop == "steps" else range(start + 1, args.steps + 1)
        with Lags(session) as lags:
            for step in steps:
                (x,) = next(batches)
                model(x).square().mean().backward()
                time.sleep(args.step_ms / 1e3)
                behind.append(step - 1 - session.committed)
                dist.barrier()
                with session.step():
                    optimizer.step()
                lags.ended[step] = time.perf_counter()
                optimizer.zero_grad()
        first = session.rank.number == 0
    if first:
        print(
            json.dumps(
                {
                    "step_ms": args.step_ms,
                    "loop": args.loop,
                    "committed": len(lags.seconds),
                    "lag_ms_p50": round(quantile(lags.seconds, 0.5) * 1e3, 1),
                    "lag_ms_p90": round(quantile(lags.seconds, 0.9) * 1e3, 1),
                    "steps_behind_mean": round(sum(behind) / len(behind), 2),
                    "steps_behind_most": max(behind),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
