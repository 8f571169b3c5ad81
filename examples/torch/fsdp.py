"""The small GPT of gpt.py, sharded by FSDP2, under replicad.

    replicad run --job fsdp --world 2 --groups 0,1 -- python fsdp.py                      fully sharded: each rank has its own shard
    replicad run --job hsdp --world 4 --groups 0,1,0,1 -- python fsdp.py --shards 2       two replicas of two shards

A shard that no other rank has is mirrored by the daemons to other nodes, every step; where replicas exist, they are the copies.
The model's shards hang on a process group, so the group comes first: `replicad.connect()` and `init_process_group(connection)` make all
ranks meet for the coming epoch. With --inprocess the block makes the model anew in each run, and `session.rebind` puts it in the old
one's place.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, Events, Text, digest, stop_at
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import replicad
from replicad.data import Loader
from replicad.store import init_process_group


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--length", type=int, default=64, help="characters of context")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--shards", type=int, default=0, help="ranks that share one replica of the model (default: all)")
    p.add_argument("--pace", type=float, default=0.0, help="shortest time of a step in seconds")
    p.add_argument("--inprocess", action="store_true")
    p.add_argument("--trace", help="file for a JSON line a phase of each recovery in process")
    p.add_argument("--baseline", action="store_true", help="train without replicad, one process a rank")
    p.add_argument("--world", type=int, default=2, help="ranks of the baseline")
    return p.parse_args()


def build(args: argparse.Namespace, world: int, alphabet: int) -> tuple[GPT, Any, Any]:
    """Model, optimizer and schedule, sharded over the process group that is there."""
    torch.manual_seed(args.seed)
    model = GPT(alphabet, args.length, args.width, args.layers)
    shards = args.shards or world
    if shards == world:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    else:
        mesh = init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * min(s / args.steps, 1))))
    return model, optimizer, schedule


def train(args: argparse.Namespace, rank: int, world: int, connection: replicad.Rank | None) -> None:
    torch.set_num_threads(1)
    emit = Events(rank)
    emit("start")
    text = Text(args.length)
    data_rank = rank  # every rank of a sharded replica sees samples of its own
    loader = Loader(text, args.batch, seed=args.seed, rank=data_rank, world=world)
    if connection is None:
        model, optimizer, schedule = build(args, world, len(text.alphabet))
        torch.manual_seed(args.seed * 1000 + rank)
        steps(args, emit, model, optimizer, schedule, loader, None, 0)
        report(args, emit, model, optimizer)
        return
    session: replicad.Session | None = None

    def block(_: Any = None) -> None:
        nonlocal session
        init_process_group(session or connection)
        model, optimizer, schedule = build(args, world, len(text.alphabet))
        if session is None:
            torch.manual_seed(args.seed * 1000 + rank)
            session = replicad.Session(connection=connection, model=model, optimizer=optimizer, scheduler=schedule, data=loader, staging=args.inprocess)
        else:
            session.rebind(model=model, optimizer=optimizer, scheduler=schedule)
        start = session.resume()
        emit("joined", action="load", epoch=start.epoch, step=int(start), source=start.source)
        emit("ready", epoch=start.epoch, step=int(start))
        steps(args, emit, model, optimizer, schedule, loader, session, start)
        report(args, emit, model, optimizer)
        session.leave()

    if args.inprocess:
        replicad.inprocess.wrap(lambda: session, trace=args.trace)(block)()
    else:
        block()
    assert session is not None
    session.close()


def steps(args: argparse.Namespace, emit: Events, model: Any, optimizer: Any, schedule: Any, loader: Loader, session: Any, start: int) -> None:
    batches = loader.endless()
    for step in range(start + 1, args.steps + 1):
        began = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        x, y = next(batches)
        loss = model(x, y)
        stop_at(emit, step, "forward")
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if session is None:
            optimizer.step()
            schedule.step()
        else:
            with session.step():
                stop_at(emit, step, "window")
                optimizer.step()
                schedule.step()
        emit("step", epoch=session.order.epoch if session else 0, step=step, loss=float(loss.detach()))
        if (left := args.pace - (time.monotonic() - began)) > 0:
            time.sleep(left)
    batches.close()


def report(args: argparse.Namespace, emit: Events, model: Any, optimizer: Any) -> None:
    """Digests of the whole model, which every rank gathers, and of this rank's shard of the optimizer's state."""
    whole = {k: v.full_tensor() for k, v in model.state_dict().items()}
    moments = {f"{i}.{k}": v.to_local() if hasattr(v, "to_local") else v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()}
    emit("done", step=args.steps, digest=digest(whole), state_digest=digest(moments))


def baseline(args: argparse.Namespace) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as d:
        children = torch.multiprocessing.start_processes(_baseline_rank, (args, f"file://{d}/store"), nprocs=args.world, start_method="spawn", join=False)
        while not children.join():
            pass


def _baseline_rank(rank: int, args: argparse.Namespace, url: str) -> None:
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=args.world)
    train(args, rank, args.world, None)
    dist.destroy_process_group()


def main() -> None:
    args = arguments()
    if args.baseline:
        baseline(args)
        return
    connection = replicad.connect()
    train(args, connection.number, connection.world, connection)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
