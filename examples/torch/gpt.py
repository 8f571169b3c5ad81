"""Trains a small GPT on Newton's Opticks with data parallelism, under replicad.

    replicad run --job gpt --world 2 -- python gpt.py                                      two ranks, each with the whole model
    replicad exec --job gpt --world 2 -- torchrun --nproc-per-node 2 --max-restarts 100 gpt.py      the same under torchrun
    python gpt.py --baseline --world 2                                                     the same training without replicad

What replicad needs is marked with (1) to (4). Everything else is a plain PyTorch program: dropout, AdamW, a cosine schedule with
warm-up, gradient clipping, two micro-batches a step, a shuffled loader with workers. Standard output carries one JSON object
a line, for the demo and the tests.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import common
import torch
from torch import nn
from torch.nn import functional as F

import replicad
from replicad.data import Loader
from replicad.parallel import ddp as data_parallel
from replicad.store import destroy_process_group, init_process_group


@functools.cache
def corpus() -> tuple[list[int], torch.Tensor]:
    """The alphabet, and the text as numbers of its characters."""
    text = torch.frombuffer(bytearray(common.TEXT.read_bytes()), dtype=torch.uint8).long()
    alphabet = torch.bincount(text).nonzero().flatten()
    number = torch.zeros(256, dtype=torch.int64)
    number[alphabet] = torch.arange(len(alphabet))
    return alphabet.tolist(), number[text]


class Text(torch.utils.data.Dataset):
    """Runs of characters, each with its successor as target."""

    def __init__(self, length: int) -> None:
        self.alphabet, self.tokens = corpus()
        self.length = length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        run = self.tokens[i * self.length : (i + 1) * self.length + 1]
        return run[:-1], run[1:]


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = (p.view(b, t, self.heads, w // self.heads).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + F.dropout(self.out(a.transpose(1, 2).reshape(b, t, w)), self.dropout, self.training)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A small decoder-only transformer over characters."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight  # tied

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def arguments(description: str | None = __doc__, **defaults: Any) -> argparse.ArgumentParser:
    p = common.arguments(description, **defaults)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--length", type=int, default=64, help="characters of context")
    p.add_argument("--state-mb", type=int, default=0, help="MiB of parameters and AdamW state of each rank: sets --width")
    p.add_argument("--early", action="store_true", help="a process that waits to become a rank (`replicad run --warm`) has its model already, which takes a third of the state")
    return p


def sized(args: argparse.Namespace, alphabet: int, shards: int = 1) -> GPT:
    """The model, as wide as --state-mb says where that is given: AdamW keeps two numbers beside each parameter's own."""
    if args.state_mb:
        parameters = (args.state_mb << 20) * shards / 12
        args.width = max(4, 4 * round(math.sqrt(parameters / (12 * args.layers)) / 4))  # a block has 12 width^2, and is cut into 4 heads
    return GPT(alphabet, args.length, args.width, args.layers)


def adamw(args: argparse.Namespace, model: Any) -> torch.optim.AdamW:
    """In one pass over the state where that is large."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1, fused=args.state_mb > 0 or None)


def cosine(optimizer: Any, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Twenty steps of warm-up, then a cosine."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * min(s / steps, 1))))


#: The text and the model of this process once they are made, which depends on no rank.
made: list[tuple[Text, GPT]] = []


def make(args: argparse.Namespace) -> tuple[Text, GPT]:
    """The text, and the model as it begins."""
    if not made:
        torch.set_num_threads(1)
        torch.manual_seed(args.seed)
        text = Text(args.length)
        made.append((text, sized(args, len(text.alphabet))))
    return made[0]


def train(args: argparse.Namespace, rank: int, world: int, replicated: bool, adapt: Callable[[nn.Module], nn.Module] = lambda model: model) -> None:
    """Trains as one rank. ``adapt`` makes of the GPT what is trained in its stead (lora.py)."""
    emit = common.Events(rank)
    emit("start")
    text, whole = make(args)
    model = adapt(whole)
    torch.manual_seed(args.seed * 1000 + rank)  # dropout differs from rank to rank
    optimizer = adamw(args, model)
    schedule = cosine(optimizer, args.steps)
    loader = Loader(text, args.batch, seed=args.seed, rank=rank, world=world, num_workers=args.workers)

    if not replicated:
        steps(args, emit, model, optimizer, schedule, loader, None)
        common.report(emit, args.steps, model, optimizer)
        return
    with replicad.Session(model=model, optimizer=optimizer, scheduler=schedule, data=loader) as session:  # (1)
        common.watch(session, model, emit)

        @replicad.inprocess.wrap(session, enabled=args.inprocess, trace=args.trace)
        def block(_: Any) -> None:
            start = session.resume()  # (2)
            emit("joined", action="load", epoch=start.epoch, step=int(start), source=start.source)
            init_process_group(session, timeout=timedelta(seconds=args.timeout))  # (3)
            emit("ready", epoch=start.epoch, step=int(start))
            steps(args, emit, model, optimizer, schedule, loader, session)
            common.report(emit, args.steps, model, optimizer)
            session.leave()

        block()
        destroy_process_group()


def steps(args: argparse.Namespace, emit: common.Events, model: nn.Module, optimizer: Any, schedule: Any, loader: Loader, session: replicad.Session | None) -> None:
    ddp = data_parallel(model, gradient_as_bucket_view=args.state_mb > 0)  # a second copy of large gradients is spared
    batches, pace = loader.endless(), common.Pace(args.pace)
    for step in session.steps(args.steps) if session else range(1, args.steps + 1):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for micro in range(args.micro):
            x, y = next(batches)
            with nullcontext() if micro == args.micro - 1 else ddp.no_sync():
                loss = ddp(x, y) / args.micro
                loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with session.step() if session else nullcontext():  # (4)
            optimizer.step()
            schedule.step()
        emit("step", epoch=session.order.epoch if session else 0, step=step, loss=total)
        pace.wait()
    batches.close()


if __name__ == "__main__":
    corpus()  # it depends on no rank, so a process that waits to become one (`--warm`) has it already
    given = arguments().parse_args()
    if given.early and not given.baseline:
        make(given)
    sys.exit(common.main(train, given))
