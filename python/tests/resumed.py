"""Training functions for check_resume, which loads this file in processes of its own."""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Iterator
from typing import Any

import quick  # isort: skip: before torch
import torch
import torch.distributed.fsdp

import replicad
import replicad.parallel
from replicad.data import Loader

assert quick, "imported for what it does"


def train(last: int, forget: bool = False) -> Iterator[dict[str, Any]]:
    """A few steps of a net with dropout and BatchNorm; with ``forget`` the samples come from a generator that nobody keeps."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))
    loader, mine = Loader(data, 4, seed=2), torch.Generator().manual_seed(5)
    with replicad.Session(model=model, optimizer=optimizer, data=loader) as session:
        start, batches = session.resume(), loader.endless()
        for _ in range(start + 1, last + 1):
            (x,) = (torch.randn(4, 4, generator=mine),) if forget else next(batches)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with session.step():
                optimizer.step()
            yield {"samples": x, "loss": loss}


def resized(last: int) -> Iterator[dict[str, Any]]:
    """One rank, or several that take their parts of its batches: replicas, or sharded where an argument says so."""
    world = replicad.place()[1]
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model: Any = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 3))
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.distributed.fsdp.fully_shard(model) if sys.argv[1:] == ["sharded"] else replicad.parallel.ddp(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    data = Loader([torch.full((6,), float(i)) for i in range(64)], 12 // world, seed=2)
    with replicad.Session(model, optimizer, scheduler=scheduler, data=data) as session:
        session.resume()
        batches = data.endless()
        for _ in session.steps(last):
            x = torch.stack(list(next(batches)))
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            with session.step():
                optimizer.step()
                scheduler.step()
            yield {"samples": x, "loss": loss}


def scheduled(last: int) -> Iterator[dict[str, Any]]:
    """A learning rate that falls with each step; told to forget, the session is not given its scheduler."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5**n)
    given = {} if sys.argv[1:] == ["--forget"] else {"scheduler": scheduler}
    data = torch.utils.data.TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))
    loader = Loader(data, 4, seed=2)
    with replicad.Session(model=model, optimizer=optimizer, data=loader, **given) as session:
        start, batches = session.resume(), loader.endless()
        for _ in range(start + 1, last + 1):
            (x,) = next(batches)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with session.step():
                optimizer.step()
                scheduler.step()
            yield {"loss": loss}


def told(last: int) -> Iterator[dict[str, Any]]:
    """A program that reads its arguments."""
    for values in train(last, forget=sys.argv[1:] == ["--forget"]):
        yield values | {"told": sys.argv[1:]}


def averaged(last: int) -> Iterator[dict[str, Any]]:
    """Two averages of weights over BatchNorm, whose statistics one takes from the model and the other averages; the argument says whether tensors are staged."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    averages = {name: torch.optim.swa_utils.AveragedModel(model, use_buffers=name == "both") for name in ("weights", "both")}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = Loader(torch.utils.data.TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1))), 4, seed=2)
    with replicad.Session(model={"model": model, **averages}, optimizer=optimizer, data=loader, staging=sys.argv[1:] == ["staged"]) as session:
        start, batches = session.resume(), loader.endless()
        for _ in range(start + 1, last + 1):
            (x,) = next(batches)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with session.step():
                optimizer.step()
                for average in averages.values():
                    average.update_parameters(model)
            yield {"samples": x, "loss": loss, "statistics": {n: a.module[1].running_var for n, a in averages.items()}, "noticed": sorted(session.noticed)}
        assert not session.noticed, session.noticed


def failing(last: int) -> Iterator[dict[str, Any]]:
    """Not a training at all."""
    print("as far as here")
    atexit.register(signal.pause)  # until the launcher ends it, which else may be before or after it has ended by itself
    raise KeyError("no such sample")
    yield {}


def other_yields(last: int) -> Iterator[dict[str, Any]]:
    """One for each micro-batch, one for two steps, or not up to the last."""
    for values in train(last - 1 if sys.argv[1:] == ["less"] else last):
        session = replicad.session.current()
        if sys.argv[1:] != ["sparse"] or session.at % 2 == 0:
            yield values
        if sys.argv[1:] == ["micro"]:
            yield values
