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
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import common
import torch
import torch.distributed as dist
from gpt import GPT, Text
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import replicad
from replicad.data import Loader
from replicad.store import connections, init_process_group


def arguments() -> argparse.Namespace:
    p = common.arguments(__doc__, micro=1, workers=0)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--length", type=int, default=64, help="characters of context")
    p.add_argument("--shards", type=int, default=0, help="ranks that share one replica of the model (default: all)")
    return p.parse_args()


def build(args: argparse.Namespace, world: int, alphabet: int) -> tuple[GPT, Any, Any]:
    """Model, optimizer and schedule, sharded over the process group that is there."""
    torch.manual_seed(args.seed)
    model = GPT(alphabet, args.length, args.width, args.layers)
    shards = args.shards or world
    with connections():
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


def train(args: argparse.Namespace, rank: int, world: int, replicated: bool) -> None:
    torch.set_num_threads(1)
    emit = common.Events(rank)
    emit("start")
    text = Text(args.length)
    loader = Loader(text, args.batch, seed=args.seed, rank=rank, world=world, num_workers=args.workers)
    if not replicated:
        model, optimizer, schedule = build(args, world, len(text.alphabet))
        torch.manual_seed(args.seed * 1000 + rank)
        steps(args, emit, model, optimizer, schedule, loader, None, 0)
        report(args, emit, model, optimizer)
        return
    connection = replicad.connect()
    session: replicad.Session | None = None

    def block(_: Any = None) -> None:
        nonlocal session
        init_process_group(session or connection, timeout=timedelta(seconds=args.timeout))
        model, optimizer, schedule = build(args, world, len(text.alphabet))
        if session is None:
            torch.manual_seed(args.seed * 1000 + rank)
            session = replicad.Session(connection=connection, model=model, optimizer=optimizer, scheduler=schedule, data=loader, staging=args.inprocess)
        else:
            session.rebind(model=model, optimizer=optimizer, scheduler=schedule)
        common.watch(session, model, emit)
        start = session.resume()
        emit("joined", action="load", epoch=start.epoch, step=int(start), source=start.source)
        emit("ready", epoch=start.epoch, step=int(start))
        steps(args, emit, model, optimizer, schedule, loader, session, start)
        report(args, emit, model, optimizer)
        session.leave()

    replicad.inprocess.wrap(lambda: session, enabled=args.inprocess, trace=args.trace)(block)()
    assert session is not None
    session.close()
    dist.destroy_process_group()


def steps(args: argparse.Namespace, emit: common.Events, model: Any, optimizer: Any, schedule: Any, loader: Loader, session: replicad.Session | None, start: int) -> None:
    batches, pace = loader.endless(), common.Pace(args.pace)
    for step in range(start + 1, args.steps + 1):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for micro in range(args.micro):
            x, y = next(batches)
            model.set_requires_gradient_sync(micro == args.micro - 1)
            loss = model(x, y) / args.micro
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with session.step() if session else nullcontext():
            optimizer.step()
            schedule.step()
        emit("step", epoch=session.order.epoch if session else 0, step=step, loss=total)
        pace.wait()
    batches.close()


def report(args: argparse.Namespace, emit: common.Events, model: Any, optimizer: Any) -> None:
    """Digests of the whole model, which every rank gathers; of this rank's shard of the optimizer's state; of its generators."""
    whole = [(k, v.full_tensor()) for k, v in model.state_dict().items()]
    emit("done", step=args.steps, digest=common.digest(whole), state_digest=common.digest(moments(optimizer)), private_digest=common.digest([("rng", torch.get_rng_state())]))


def moments(optimizer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for i, state in optimizer.state_dict()["state"].items():
        for k, v in state.items():
            yield f"{i}.{k}", v.to_local() if hasattr(v, "to_local") else v


if __name__ == "__main__":
    sys.exit(common.main(train, arguments()))
