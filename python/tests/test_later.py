"""Optimizers and schedulers that a program makes, or takes up, once it has a session."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules
from torch.optim import optimizer as torchs
from torch.optim.swa_utils import SWALR

from replicad._torch import later
from replicad._torch.derived import Derived
from replicad._torch.lacking import Lacking
from replicad._torch.objects import Objects


class Program:
    """A model, its optimizer and its scheduler, and what looks at them."""

    def __init__(self, **more: Any) -> None:
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = schedules.StepLR(self.optimizer, 2)
        given = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": (), "data": (), "extra": None} | more
        self.lacking = Lacking(Objects(given, lambda name: False, True, derived=Derived(None)))
        self.at = 0

    def step(self, *stepped: Any) -> dict[str, str]:
        self.model(torch.ones(1, 2)).sum().backward()
        for o in stepped or (self.optimizer, self.scheduler):
            o.step()
        self.at += 1
        return dict(self.lacking.step(self.at))


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program()
    later.listen()
    try:
        yield program
    finally:
        later.deaf()


@pytest.mark.parametrize(
    "make",
    [
        lambda o: SWALR(o, swa_lr=0.05),
        lambda o: schedules.CosineAnnealingLR(o, 10),
        lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o), schedules.ExponentialLR(o, 0.9)], [2]),
        lambda o: schedules.ChainedScheduler([schedules.LinearLR(o), schedules.ExponentialLR(o, 0.9)]),
    ],
)
def test_a_scheduler_that_is_made_midway_is_named_when_it_counts(program: Program, make: Callable[[Any], Any]) -> None:
    assert program.step() == {}
    second = make(program.optimizer)
    assert program.step() == {}
    seen = program.step(program.optimizer, second)
    assert len(seen) == 1
    assert f"a {type(second).__name__} of optim was made after the session and is in no copy" in " ".join(seen.values())
    assert "scheduler=[first, second]" in next(iter(seen.values()))
    assert program.step(program.optimizer, second) == {}  # once


def test_a_plateau_is_named(program: Program) -> None:
    second = schedules.ReduceLROnPlateau(program.optimizer)
    assert program.step() == {}
    second.step(1.0)
    assert "optim, ReduceLROnPlateau" in program.step()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)])
def test_an_optimizer_that_takes_over_is_named_when_it_steps(program: Program, kind: Any) -> None:
    assert program.step() == {}
    second = kind(program.model.parameters(), lr=0.01)
    assert program.step() == {}
    seen = program.step(second)
    assert list(seen) == [f"optimizer, {type(second).__name__}"]
    assert "its state is in no copy" in next(iter(seen.values()))
    assert program.step(second) == {}  # once


def test_quiet(program: Program) -> None:
    plain = torch.optim.SGD(program.model.parameters(), lr=0.01)  # has no state
    other = torch.nn.Linear(2, 2)
    others = torch.optim.Adam(other.parameters())
    rates = schedules.StepLR(others, 1)
    other(torch.ones(1, 2)).sum().backward()
    dropped = schedules.ExponentialLR(program.optimizer, 0.9)
    program.optimizer.step()
    dropped.step()
    del dropped
    plot = schedules.StepLR(plotted := copy.deepcopy(program.optimizer), 2)
    plotted.step()
    plot.step()
    unused = schedules.StepLR(program.optimizer, 5)
    gc.collect()
    for _ in range(3):
        assert program.step(program.optimizer, program.scheduler, plain, others, rates) == {}
    assert unused.last_epoch == 0


class Around(torch.optim.Optimizer):
    """Steps another."""

    def __init__(self, base: Any) -> None:
        super().__init__(base.param_groups, {})
        self.base = base
        self.state["count"] = {"n": 1}  # type: ignore[index]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step()


@pytest.mark.parametrize("given", ["outer", "inner"])
def test_one_that_steps_another_is_one_with_it(given: str) -> None:
    program = Program()
    outer = Around(program.optimizer)
    if given == "outer":
        objects = {"model": program.model, "optimizer": [program.optimizer], "scheduler": (), "scaler": (), "data": (), "extra": None}
        program.lacking = Lacking(Objects(objects, lambda name: False, True, derived=Derived(None)))
    later.listen()
    try:
        assert program.step(outer) == {}
    finally:
        later.deaf()


def test_torch_is_as_it_was_when_the_session_is_closed() -> None:
    before = [vars(k)["__init__"] for k in later.KINDS], len(torchs._global_optimizer_post_hooks)
    later.listen()
    later.listen()
    later.deaf()
    assert ([vars(k)["__init__"] for k in later.KINDS], len(torchs._global_optimizer_post_hooks)) == before


PROGRAM = """
import json, sys, torch, replicad
from torch.optim.swa_utils import SWALR

late, both = sys.argv[1] == "late", sys.argv[1] == "both"
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
first = torch.optim.lr_scheduler.StepLR(optimizer, 2)
second = SWALR(optimizer, swa_lr=0.05) if both else None
with replicad.Session(model, optimizer, scheduler=[first, second] if both else first) as session:
    session.resume()
    for step in session.steps(8):
        if step == 5 and late:
            second = SWALR(optimizer, swa_lr=0.05)
        model(torch.ones(1, 4)).sum().backward()
        with session.step():
            optimizer.step()
            optimizer.zero_grad()
            (first if second is None or step < 5 else second).step()
        print("STEP", step, json.dumps(list(session.noticed)), flush=True)
"""


@pytest.mark.parametrize("how", ["late", "both"])
def test_in_a_job(run: Callable[..., str], how: str) -> None:
    out = run(PROGRAM, how)
    seen = {int(x.split()[1]): json.loads(x.split(maxsplit=2)[2]) for x in out.splitlines() if x.startswith("STEP ")}
    assert {s: n for s, n in seen.items() if n} == ({s: ["optim, SWALR"] for s in (5, 6, 7, 8)} if how == "late" else {}), out
