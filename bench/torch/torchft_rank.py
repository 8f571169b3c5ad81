"""One replica of the small GPT under torchft, for `recovery.py`: prints a JSON line when it starts and after each committed step."""

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
from gpt import GPT, Text

LENGTH = 64


def say(event: str, **more: Any) -> None:
    os.write(1, json.dumps({"t": time.time_ns(), "event": event, **more}).encode() + b"\n")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--replica", type=int, required=True)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--pace", type=float, default=0.05, help="seconds a step takes at least")
    args = p.parse_args()
    say("start")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    text = Text(LENGTH)
    model = GPT(len(text.alphabet), LENGTH, args.width, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, load_state_dict=load, state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        replica_id=f"r{args.replica}", store_addr="localhost", store_port=store.port, rank=0, world_size=1, lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
    )  # fmt: skip
    ddp = DistributedDataParallel(manager, model)
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
