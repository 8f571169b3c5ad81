"""What the torch examples share and replicad does not need: events for the demo, digests, the run without replicad.

The examples work with torch 2.6 to 2.15; fsdp.py on a CPU with newer ones than 2.6.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import replicad
from replicad.store import destroy_process_group

TEXT = Path(__file__).resolve().parent.parent / "textlm" / "data" / "opticks.txt"


def arguments(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """The flags that all examples have; `replicad demo --trainer` gives those without a default of the program's own."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--batch", type=int, default=8, help="samples of a micro-batch")
    p.add_argument("--micro", type=int, default=2, help="micro-batches of a step")
    p.add_argument("--workers", type=int, default=1, help="processes that load data")
    p.add_argument("--pace", type=seconds, default=0.0, help="shortest time of a step, as 0.02 or 20ms: stands for a larger model")
    p.add_argument("--timeout", type=seconds, default=1800.0, help="of collectives: so long does a rank that hangs go unnoticed")
    p.add_argument("--inprocess", action="store_true", help="survive the loss of others in this process")
    p.add_argument("--trace", help="file for a JSON line a phase of each recovery in process")
    p.add_argument("--baseline", action="store_true", help="train without replicad, one process a rank")
    p.add_argument("--world", type=int, default=2, help="ranks of the baseline")
    p.set_defaults(**defaults)
    return p


def seconds(text: str) -> float:
    """A time as "1.5", "20ms" or "2s"."""
    for unit, scale in (("ms", 1e-3), ("s", 1.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * scale
    return float(text)


class Events:
    """JSON lines on standard output, each in one write."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __call__(self, event: str, **more: Any) -> None:
        line = {"t": time.time_ns(), "rank": self.rank, "pid": os.getpid(), "event": event, **more}
        os.write(1, json.dumps(line).encode() + b"\n")


def watch(session: replicad.Session, model: torch.nn.Module, emit: Events) -> None:
    """Lets the demo and the tests break this rank; does nothing where nobody asked for it."""
    faults = replicad.testing.Faults.from_environment(emit.rank, stopped=lambda where, step: emit("stopped", phase=where, step=step))
    if faults:
        faults.attach(session, model)


def digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    h = hashlib.sha256()
    for name, t in sorted(tensors, key=lambda at: at[0]):
        h.update(name.encode())
        h.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    return h.hexdigest()


def report(emit: Events, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The last event: weights and optimizer, equal on all replicas; buffers and random generators, this rank's own."""
    state = optimizer.state_dict()["state"]
    emit(
        "done",
        step=step,
        digest=digest(model.named_parameters()),
        state_digest=digest((f"{i}.{k}", v) for i, s in state.items() for k, v in s.items() if isinstance(v, torch.Tensor)),
        private_digest=digest([*model.named_buffers(), ("rng", torch.get_rng_state())]),
    )


class Pace:
    """Makes steps take a time at least."""

    def __init__(self, every: float) -> None:
        self.every, self.began = every, time.monotonic()

    def wait(self) -> None:
        if (left := self.began + self.every - time.monotonic()) > 0:
            time.sleep(left)
        self.began = time.monotonic()


def main(train: Callable[..., None], args: argparse.Namespace) -> None:
    """Trains as the rank that the launcher says, or all of a baseline's ranks."""
    if not args.baseline:
        if "REPLICAD_WAIT_FD" in os.environ:  # of `replicad run --warm`: torch is imported; what it loads at its first use is next
            p = torch.nn.Parameter(torch.zeros(1))
            (p * 0).sum().backward()
            torch.optim.AdamW([p]).step()
        replicad.wait_rank()
        train(args, *replicad.place(), True)
        return
    import tempfile

    with tempfile.TemporaryDirectory() as d:
        children = torch.multiprocessing.start_processes(_rank, (train, args, f"file://{d}/store"), nprocs=args.world, start_method="spawn", join=False)
        while not children.join():
            pass


def _rank(rank: int, train: Callable[..., None], args: argparse.Namespace, url: str) -> None:
    """One process of the baseline, as torchrun would start it."""
    torch.multiprocessing.set_start_method("fork", force=True)  # of loader workers; a spawned process hands its own way down
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=args.world)
    train(args, rank, args.world, False)
    destroy_process_group()
    os._exit(0)  # torch's threads abort an interpreter that ends, now and then ("terminate called without an active exception")
