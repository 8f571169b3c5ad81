"""What the sharded examples share: the small GPT of gpt.py under replicad, where the process group comes before the model.

A model's shards hang on a process group, so `replicad.connect()` and `init_process_group(connection)` make all ranks meet for the coming
epoch, and the session is made over that connection. With --inprocess the block makes the model anew in each run, and `session.rebind`
puts it in the old one's place.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import common
import gpt
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import replicad
from replicad.data import Loader
from replicad.store import connections, destroy_process_group, init_process_group


class Layout:
    """How model and optimizer are spread over the ranks. A program has a subclass."""

    def spread(self, args: argparse.Namespace, world: int, model: gpt.GPT) -> tuple[Any, Any, Any]:
        """Over the process group that is there: the model that is kept, what computes its loss, and its optimizer."""
        raise NotImplementedError

    def micro(self, computes: Any, last: bool) -> AbstractContextManager[Any]:
        """Around a micro-batch: gradients are reduced in the last one alone."""
        return nullcontext() if last else computes.no_sync()

    def clip(self, model: Any) -> None:
        """Clips the whole gradient's norm to 1."""
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def whole(self, model: Any) -> list[tuple[str, torch.Tensor]]:
        """The whole weights, gathered on every rank."""
        return list(model.named_parameters())

    def part(self, optimizer: Any) -> Any:
        """The optimizer of what lies on this rank."""
        return optimizer


def arguments(description: str | None) -> argparse.ArgumentParser:
    p = gpt.arguments(description, micro=1, workers=0)
    p.add_argument("--shards", type=int, default=0, help="ranks that share one replica of the model (default: all)")
    return p


def mesh(args: argparse.Namespace, world: int) -> DeviceMesh:
    """Ranks as replicas of shards; the shards alone where there is one replica."""
    shards = args.shards or world
    with connections():
        if shards == world:
            return init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
        return init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=("replicate", "shard"))


class Training:
    """What the process group has to be there for."""

    def __init__(self, layout: Layout, args: argparse.Namespace, world: int, alphabet: int) -> None:
        torch.manual_seed(args.seed)
        self.layout, self.args = layout, args
        self.model, self.computes, self.optimizer = layout.spread(args, world, gpt.sized(args, alphabet, getattr(args, "shards", 1) or world))
        self.schedule = gpt.cosine(self.optimizer, args.steps)

    def steps(self, emit: common.Events, loader: Loader, session: replicad.Session | None) -> None:
        batches, pace = loader.endless(), common.Pace(self.args.pace)
        for step in session.steps(self.args.steps) if session else range(1, self.args.steps + 1):
            self.optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for micro in range(self.args.micro):
                x, y = next(batches)
                with self.layout.micro(self.computes, micro == self.args.micro - 1):
                    loss = self.computes(x, y) / self.args.micro
                    loss.backward()
                total += float(loss.detach())
            self.layout.clip(self.model)
            with session.step() if session else nullcontext():
                self.optimizer.step()
                self.schedule.step()
            emit("step", epoch=session.order.epoch if session else 0, step=step, loss=total)
            pace.wait()
        batches.close()

    def report(self, emit: common.Events) -> None:
        """Digests of the whole model, which every rank gathers; of this rank's part of the optimizer's state; of its generators."""
        state = self.layout.part(self.optimizer).state_dict()["state"]
        moments = [(f"{i}.{k}", getattr(v, "_local_tensor", v)) for i, s in state.items() for k, v in s.items()]
        emit(
            "done",
            step=self.args.steps,
            digest=common.digest(self.layout.whole(self.model)),
            state_digest=common.digest(moments),
            private_digest=common.digest([("rng", torch.get_rng_state())]),
        )


def train(layout: Layout, args: argparse.Namespace, rank: int, world: int, replicated: bool) -> None:
    torch.set_num_threads(1)
    emit = common.Events(rank)
    emit("start")
    text = gpt.Text(args.length)
    loader = Loader(text, args.batch, seed=args.seed, rank=rank, world=world, num_workers=args.workers)
    if not replicated:
        training = Training(layout, args, world, len(text.alphabet))
        torch.manual_seed(args.seed * 1000 + rank)  # dropout differs from rank to rank
        training.steps(emit, loader, None)
        training.report(emit)
        return
    connection = replicad.connect()
    session: replicad.Session | None = None

    def block(_: Any = None) -> None:
        nonlocal session
        init_process_group(session or connection, timeout=timedelta(seconds=args.timeout))
        training = Training(layout, args, world, len(text.alphabet))
        kept = {"model": training.model, "optimizer": training.optimizer, "scheduler": training.schedule}
        if session is None:
            torch.manual_seed(args.seed * 1000 + rank)
            session = replicad.Session(connection=connection, data=loader, staging=args.inprocess, **kept)
        else:
            session.rebind(**kept)
        common.watch(session, training.model, emit)
        start = session.resume()
        emit("joined", action="load", epoch=start.epoch, step=int(start), source=start.source)
        emit("ready", epoch=start.epoch, step=int(start))
        training.steps(emit, loader, session)
        training.report(emit)
        session.leave()

    replicad.inprocess.wrap(lambda: session, enabled=args.inprocess, trace=args.trace)(block)()
    assert session is not None
    session.close()
    destroy_process_group()
