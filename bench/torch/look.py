"""What a session costs besides copying: how long it takes to be made, and what it looks at in each step.

    replicad daemon --dev &
    replicad run --dev --job look --world 1 --min-copies 1 -- python bench/torch/look.py --parameters 504

The parameters are of four numbers each, under AdamW (three tensors more a parameter), so that there is next to nothing to copy, and each step's
copy is waited for before the next is measured. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from overhead import quantile

import replicad


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--parameters", type=int, default=504)
    p.add_argument("--steps", type=int, default=300)
    args = p.parse_args()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(args.parameters // 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for q in model.parameters():
        q.grad = torch.zeros_like(q)
    optimizer.step()
    began = time.perf_counter()
    session = replicad.Session(model=model, optimizer=optimizer)
    made = time.perf_counter() - began
    began = time.perf_counter()
    session.resume()
    resumed = time.perf_counter() - began
    took = []
    for _ in range(args.steps):
        began = time.perf_counter()
        with session.step():
            pass
        took.append(time.perf_counter() - began)
        session.commit()
    session.leave()
    session.close()
    print(
        json.dumps(
            {
                "tensors": len(model.state_dict()) + sum(len(s) for s in optimizer.state.values()),
                "made_s": round(made, 2),
                "first_resume_s": round(resumed, 2),
                "step_ms_p50": round(quantile(took, 0.5) * 1e3, 2),
                "step_ms_p99": round(quantile(took, 0.99) * 1e3, 2),
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
