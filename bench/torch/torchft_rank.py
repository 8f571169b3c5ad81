"""One replica of the small GPT under torchft, for `recovery.py`.

It prints a JSON line when its imports are done, when it has its model and manager, when a state has come from the other replica, and after
each committed step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchft
from torchft.ddp import DistributedDataParallel
from torchft.process_group import ProcessGroupGloo

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "torch"))
from gpt import Text, adamw, sized


def say(event: str, **more: Any) -> None:
    os.write(1, json.dumps({"t": time.time_ns(), "event": event, **more}).encode() + b"\n")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--replica", type=int, required=True)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--state-mb", type=int, default=0, help="as of gpt.py: sets --width")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--timeout", type=float, default=5, help="of collectives, in seconds")
    p.add_argument("--pace", type=float, default=0.05, help="seconds a step takes at least")
    args = p.parse_args()
    say("start")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    text = Text(args.length)
    model = sized(args, len(text.alphabet))
    optimizer = adamw(args, model)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])
        say("loaded")

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=args.timeout)), min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        replica_id=f"r{args.replica}", store_addr="localhost", store_port=store.port, rank=0, world_size=1, lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
    )  # fmt: skip
    ddp = DistributedDataParallel(manager, model, gradient_as_bucket_view=args.state_mb > 0)
    say("made")
    while True:
        began = time.monotonic()
        at = torch.randint(len(text), (args.batch,))
        x, y = (torch.stack(z) for z in zip(*(text[int(i)] for i in at), strict=True))
        manager.start_quorum()
        optimizer.zero_grad()
        ddp(x, y).backward()
        if manager.should_commit():
            optimizer.step()
            say("step", step=manager.current_step(), replicas=manager.num_participants())
        time.sleep(max(0.0, began + args.pace - time.monotonic()))


if __name__ == "__main__":
    main()
