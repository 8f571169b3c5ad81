"""Trains a small convolutional net with BatchNorm to tell letters apart, under replicad.

    replicad run --job conv --world 2 -- python convnet.py
    python convnet.py --baseline --world 2

The images are made of the letters of Newton's Opticks, drawn with strokes and noise; loader workers shift, erase and blur them with
random numbers of python, numpy and torch. SGD with momentum, a stepwise schedule. BatchNorm's statistics are each rank's own.
"""

from __future__ import annotations

import argparse
import random
import sys
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import common
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import replicad
from replicad.data import Loader
from replicad.parallel import ddp as data_parallel
from replicad.store import destroy_process_group, init_process_group

SIZE = 16  # pixels
LETTERS = b"aeiounst"


class Letters(torch.utils.data.Dataset):
    """Pictures of the letters of a text, with augmentation that draws random numbers."""

    def __init__(self, count: int = 4096) -> None:
        self.labels = [LETTERS.index(b) for b in common.TEXT.read_bytes() if b in LETTERS][:count]
        draw = torch.Generator().manual_seed(7)
        coarse = (torch.rand(len(LETTERS), 1, SIZE // 4, SIZE // 4, generator=draw) > 0.5).float()
        self.shapes = F.interpolate(coarse, size=SIZE).squeeze(1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        label = self.labels[i]
        image = torch.roll(self.shapes[label], (random.randint(-3, 3), random.randint(-3, 3)), (0, 1))
        top, left = np.random.randint(0, SIZE - 4, size=2)
        image[top : top + 4, left : left + 4] = 0
        return (image + 0.5 * torch.randn(SIZE, SIZE)).unsqueeze(0), label


def net(width: int) -> nn.Sequential:
    """Convolutions, BatchNorm, a linear head."""

    def stage(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*stage(1, width), *stage(width, 2 * width), *stage(2 * width, 2 * width), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * width, len(LETTERS)))


def arguments() -> argparse.Namespace:
    p = common.arguments(__doc__, batch=16)
    p.add_argument("--width", type=int, default=8, help="channels of the first stage")
    return p.parse_args()


def train(args: argparse.Namespace, rank: int, world: int, replicated: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    emit = common.Events(rank)
    emit("start")
    model = net(args.width)
    torch.manual_seed(args.seed * 1000 + rank)  # dropout differs from rank to rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, max(1, args.steps // 3), gamma=0.3)
    loader = Loader(Letters(), args.batch, seed=args.seed, rank=rank, world=world, num_workers=args.workers)

    if not replicated:
        steps(args, emit, model, optimizer, schedule, loader, None)
        common.report(emit, args.steps, model, optimizer)
        return
    with replicad.Session(model=model, optimizer=optimizer, scheduler=schedule, data=loader) as session:
        common.watch(session, model, emit)

        @replicad.inprocess.wrap(session, enabled=args.inprocess, trace=args.trace)
        def block(_: Any) -> None:
            start = session.resume()
            emit("joined", action="load", epoch=start.epoch, step=int(start), source=start.source)
            init_process_group(session, timeout=timedelta(seconds=args.timeout))
            emit("ready", epoch=start.epoch, step=int(start))
            steps(args, emit, model, optimizer, schedule, loader, session)
            common.report(emit, args.steps, model, optimizer)
            session.leave()

        block()
        destroy_process_group()


def steps(args: argparse.Namespace, emit: common.Events, model: nn.Module, optimizer: Any, schedule: Any, loader: Loader, session: replicad.Session | None) -> None:
    ddp = data_parallel(model)
    batches, pace = loader.endless(), common.Pace(args.pace)
    for step in session.steps(args.steps) if session else range(1, args.steps + 1):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for micro in range(args.micro):
            x, y = next(batches)
            with nullcontext() if micro == args.micro - 1 else ddp.no_sync():
                loss = F.cross_entropy(ddp(x), y) / args.micro
                loss.backward()
            total += float(loss.detach())
        with session.step() if session else nullcontext():
            optimizer.step()
            schedule.step()
        emit("step", epoch=session.order.epoch if session else 0, step=step, loss=total)
        pace.wait()
    batches.close()


if __name__ == "__main__":
    sys.exit(common.main(train, arguments()))
