"""State that a training loop changes in ways that are easy to overlook: it is kept, or refused or named before it is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

import torch

from conftest import Daemon
from replicad import rng
from replicad.data import Loader
from replicad.optimizers import materialise

REPLACED = """
import sys
import torch
import replicad
from torch.testing._internal.two_tensor import TwoTensor

class Own(torch.optim.Optimizer):
    "It makes new tensors in every step."
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            if sys.argv[1] == "inner":
                if not state:
                    state["two"] = TwoTensor(torch.zeros_like(p), torch.zeros_like(p))
                state["two"].b = state["two"].b + p.grad
            elif sys.argv[1] == "nested":
                state["both"] = [x + p.grad.sum() for x in state["both"]] if state else [torch.zeros(()), torch.zeros(())]
            else:
                state["sum"] = state["sum"] + p.grad if state else torch.zeros_like(p)

model = torch.nn.Linear(2, 1, bias=False)
optimizer = Own(model.parameters())
session = replicad.Session(model=model, optimizer=optimizer)
session.resume()
model(torch.ones(1, 2)).sum().backward()
try:
    with session.step():
        optimizer.step()
except replicad.Mismatch as err:
    print("REFUSED at", session.at, err)
session.close()
"""


@pytest.mark.parametrize(("how", "name"), [("flat", "optim.model.weight.sum"), ("nested", "optim.model.weight.both.0"), ("inner", "optim.model.weight.two.b")])
def test_optimizer_state_that_is_replaced_in_a_step(how: str, name: str, daemon: Daemon) -> None:
    """The step that does it is refused: its copy would have the old tensors."""
    job = daemon.run(REPLACED, how)
    job.until(f"REFUSED at 0 {name}")
    job.kill()


EXTRA = """
import os, signal, sys
import torch
import replicad

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = torch.nn.Linear(4, 2), torch.ones(())

    def forward(self, x):
        self.scale = 0.9 * self.scale + 0.1 * x.abs().max()
        return self.linear(x / self.scale)

    def get_extra_state(self):
        return {"scale": self.scale}

    def set_extra_state(self, state):
        self.scale = state["scale"]

torch.manual_seed(1)
model = Scaled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model=model, optimizer=optimizer)
start = session.resume()
for step in range(start + 1, 7):
    optimizer.zero_grad()
    model(torch.full((2, 4), float(step))).sum().backward()
    if step == 5 and start == 0 and sys.argv[1] == "fault":
        session.commit()
        os.kill(os.getpid(), signal.SIGKILL)
    with session.step():
        optimizer.step()
print("END", float(model.scale), float(model.linear.weight.detach().double().sum()))
session.leave()
session.close()
"""


def test_extra_state_of_modules(daemon: Daemon) -> None:
    ends = [re.findall(r"^END (.*)$", daemon.run(EXTRA, how).done(), re.M) for how in ("none", "fault")]
    assert len(ends[0]) == 1
    assert ends[0] == ends[1]


NAMED = """
import torch
import replicad
from torch.optim.swa_utils import AveragedModel

model = torch.nn.Linear(2, 1)
averaged = AveragedModel(model)
frozen = torch.nn.Linear(2, 1).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model={"model": model, "averaged": averaged, "frozen": frozen}, optimizer=optimizer)
session.resume()
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
    with session.step():
        optimizer.step()
        averaged.update_parameters(model)
        with torch.no_grad():
            frozen.weight.add_(1)
for name, text in sorted(session.noticed.items()):
    print("NOTICED", name, text)
session.leave()
session.close()
"""


def test_what_changes_at_another_time_than_it_is_copied_is_named(daemon: Daemon) -> None:
    out = daemon.run(NAMED).done()
    assert re.findall(r"^NOTICED (\S+)", out, re.M) == ["model.averaged.n_averaged", "model.frozen.weight"], out


SWITCHES = """
import torch
import replicad

model = torch.nn.Linear(2, 1)
session = replicad.Session(model=model)


def switches():
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch._C._len_torch_function_stack()


@replicad.inprocess.wrap(session)
def train(call):
    print("RUN", call.runs, switches() == before, flush=True)
    session.resume()
    if call.runs == 1:  # as a restart leaves them that is raised on the first line of their __exit__
        torch.set_grad_enabled(False)
        torch.autocast("cpu", dtype=torch.float16).__enter__()
        torch.device("meta").__enter__()
        raise RuntimeError("of this rank")
    session.leave()


before = switches()
train()
session.close()
"""


def test_what_a_thread_had_switched_on(daemon: Daemon) -> None:
    out = daemon.run(SWITCHES).done()
    assert re.findall(r"^RUN (.*)$", out, re.M) == ["1 True", "2 True"], out


def test_a_generator_of_a_dataset() -> None:
    """It goes on from item to item, in the training process too."""

    class Data(torch.utils.data.Dataset[float]):
        generator = torch.Generator().manual_seed(1)

        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> float:
            return float(torch.rand((), generator=self.generator))

    data = Data()
    rng.add("a dataset's", data.generator)
    try:
        drawn = [float(x) for batch in Loader(data, 2, rank=0, world=1) for x in batch]
    finally:
        rng.remove("a dataset's")
    assert len(set(drawn)) == 8


def test_making_optimizer_state_is_no_step_of_the_program() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([p])
    steps = []
    handles = [optimizer.register_step_post_hook(lambda *_: steps.append("post")), optimizer.register_step_pre_hook(lambda *_: (steps.append("pre"), torch.rand(1))[:0] or None)]
    before = torch.get_rng_state()
    materialise(optimizer)
    assert steps == [] and torch.equal(before, torch.get_rng_state())
    p.grad = torch.ones(2)
    optimizer.step()
    assert steps == ["pre", "post"]
    for h in handles:
        h.remove()


FULL = """
import torch
import replicad

model = torch.nn.Linear(2, 1)
session = replicad.Session(model=model)
session.resume()
compiled = torch.compile(model, fullgraph=True, backend="eager")
for _ in range(2):
    compiled(torch.ones(1, 2)).sum().backward()
    with session.step():
        pass
print("COMPILED", session.noticed)
session.leave()
session.close()
"""


def test_a_graph_without_breaks(daemon: Daemon) -> None:
    assert "COMPILED {}" in daemon.run(FULL).done()


CALLED = """
import gc, sys, threading, torch, replicad

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
session = replicad.Session(model=model, optimizer=optimizer)
session.resume()
if sys.argv[1] == "draws":
    torch.randn(3)

def train(updated=True):
    model(torch.ones(2, 4)).sum().backward()
    with session.step(updated=updated):
        if updated:
            optimizer.step()
            optimizer.zero_grad()

train()
if sys.argv[1] == "outside":
    try:
        optimizer.step()
    except replicad.SessionState as err:
        print("REFUSED", err)
if sys.argv[1] == "collected":  # on a thread of whoever collects: nothing is said to the daemon there
    told = []
    fail = session.rank.fail
    session.rank.fail = lambda text: (told.append(threading.current_thread().name), fail(text))

    def steps():
        with session.step():
            yield

    class Holder: ...

    if session.order.epoch == 1:
        cycle = Holder()
        cycle.itself, cycle.steps = cycle, steps()
        next(cycle.steps)
        del cycle
        collector = threading.Thread(target=gc.collect)
        collector.start(), collector.join()
        print("TOLD", told)
        try:
            train()
        except replicad.Fenced:
            print("TOLD", told)
            session.resume()
            train()
            session.commit()
if sys.argv[1] == "raises" and session.order.epoch == 1:
    raise RuntimeError("once")
if sys.argv[1] == "carried":
    train(updated=False), train()
if sys.argv[1] == "dropped":
    train(updated=False), optimizer.zero_grad(), train()
print("NOTICED", sorted(session.noticed))
if sys.argv[1] != "unleft":
    session.leave()
    session.close()
    optimizer.step()
else:
    session.commit()
    if session.order.epoch > 1:
        session.leave()
"""


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("nothing", ["NOTICED []"]),
        ("draws", ['NOTICED ["torch\'s CPU generator"]', "were drawn between resume and the first forward"]),
        ("outside", ["REFUSED SGD.step() outside of `with session.step()`: the copy of step 1 may be under way", "NOTICED []"]),
        ("carried", ["NOTICED ['gradients']", "gradients that step 2 left (updated=False) were changed before step 3"]),
        ("dropped", ["NOTICED []"]),
        ("unleft", ["this program ends at step 1 without session.leave()"]),
        ("collected", ["TOLD []", "TOLD ['MainThread']"]),
        ("raises", ["RuntimeError: once"]),
    ],
)
def test_calls_at_the_wrong_time(how: str, says: list[str], run: Callable[..., str]) -> None:
    out = run(CALLED, how)
    assert [text for text in says if text not in out] == [], out
    assert ("without session.leave()" in out) == (how == "unleft"), out


def test_counters_in_parameter_groups_begin_where_they_did() -> None:
    """A session makes an optimizer's state by a step with zero gradients, which must not count."""

    class Counting(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1, "k": 0, "scale": torch.ones(()), "betas": (0.9, 0.99)})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["k"] += 1
                group["seen"] = group.get("seen", 0) + 1
                group["scale"].mul_(0.5)
                for p in group["params"]:
                    self.state[p].setdefault("average", torch.zeros_like(p)).add_(p.grad)

    optimizer = Counting([torch.nn.Parameter(torch.ones(3))])
    scale = optimizer.param_groups[0]["scale"]
    materialise(optimizer)
    group = optimizer.param_groups[0]
    assert (group["k"], group["betas"], float(group["scale"]), "seen" in group) == (0, (0.9, 0.99), 1.0, False)
    assert group["scale"] is scale
