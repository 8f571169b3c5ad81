"""State that a training loop changes in ways that are easy to overlook: it is kept, or refused or named before it is lost."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from conftest import Daemon
from replicad import Mismatch, Unsupported, rng
from replicad._torch.memory import Memory
from replicad._torch.objects import Objects
from replicad._torch.optimizers import materialise
from replicad._torch.staging import Staging
from replicad._torch.trained import Trained
from replicad.data import Loader

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
                state["both"] = [x + p.grad.sum() for x in state.get("both", [torch.zeros(()), torch.zeros(())])]
            else:
                state["sum"] = state.get("sum", torch.zeros_like(p)) + p.grad

model = torch.nn.Linear(2, 1, bias=False)
optimizer = Own(model.parameters())
try:
    session = replicad.Session(model=model, optimizer=optimizer)
except replicad.Unsupported as err:
    sys.exit(f"REFUSED when it is made: {err}")
session.resume()
model(torch.ones(1, 2)).sum().backward()
try:
    with session.step():
        optimizer.step()
except replicad.Mismatch as err:
    print("REFUSED at", session.at, err)
session.close()
"""


DERIVED = """
import hashlib, os, signal, sys
import torch

how = sys.argv[1]
torch.set_num_threads(1)

class Lookahead(torch.optim.SGD):
    "Slow weights beside torch's momentum."
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if "slow" not in self.state[p]:
                self.state[p] |= {"slow": p.detach().clone(), "step": 0}
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["step"] += 1
            if state["step"] % 3 == 0:
                p.copy_(state["slow"].lerp_(p, 0.5))

class Root(torch.optim.Optimizer):
    "The weights' root mean square is made anew in each step, and read in the next, as in transformers' Adafactor."
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state |= {"rms": p.norm(), "average": torch.zeros_like(p)}
            state["average"].mul_(0.9).add_(p.grad)
            p.sub_(0.1 * state["rms"] * state["average"])
            state["rms"] = p.norm()

class Wrapping(torch.optim.Optimizer):
    "As accelerate's AcceleratedOptimizer."
    def __init__(self, optimizer):
        self.optimizer = optimizer
    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    def step(self, closure=None):
        self.optimizer.step(closure)

make = {"lookahead": lambda p: Lookahead(p, lr=0.1, momentum=0.9), "root": Root, "wrapping": lambda p: Wrapping(torch.optim.AdamW(p, 0.1))}[how]


def made():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    return model, make(list(model.parameters())), torch.randn(20, 4)


def backward(model, inputs, step):
    model.zero_grad()
    model(inputs[step : step + 4]).pow(2).mean().backward()


def end(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


model, optimizer, inputs = made()
for step in range(1, 9):
    backward(model, inputs, step)
    optimizer.step()
print("WANT", end(model), flush=True)
import replicad
model, optimizer, inputs = made()
session = replicad.Session(model=model, optimizer=optimizer)
start = session.resume()
print("START", int(start), flush=True)
for step in range(start + 1, 9):
    backward(model, inputs, step)
    if step == 6 and start == 0:
        session.commit()
        os.kill(os.getpid(), signal.SIGKILL)
    with session.step():
        optimizer.step()
print("END", end(model), flush=True)
assert not session.noticed, session.noticed
session.leave()
session.close()
"""


@pytest.mark.parametrize("how", [pytest.param("lookahead", marks=pytest.mark.long), "root", "wrapping"])
def test_an_optimizer_that_is_made_of_torchs(how: str, daemon: Daemon) -> None:
    """After five steps, a kill and three steps more its weights are those of eight steps without a session, to the bit."""
    out = daemon.run(DERIVED, how).done()
    assert re.findall(r"^START (\d)$", out, re.M) == ["0", "5"], out
    want, (end,) = re.findall(r"^WANT (.*)$", out, re.M), re.findall(r"^END (.*)$", out, re.M)
    assert want == [end] * 2, out


@pytest.mark.parametrize(("how", "name"), [("nested", "optim.model.weight.both.0"), ("inner", "optim.model.weight.two.b")])
def test_optimizer_state_that_is_replaced_in_a_step(how: str, name: str, daemon: Daemon) -> None:
    """The step that does it is refused: its copy would have the old tensors."""
    job = daemon.run(REPLACED, how)
    assert "the optimizer's own step" in job.until(f"REFUSED at 0 {name}")
    job.kill()


def test_an_optimizer_whose_step_replaces_its_state_is_refused_when_the_session_is_made(daemon: Daemon) -> None:
    job = daemon.run(REPLACED, "flat")
    assert "have the step change them in place" in job.until("REFUSED when it is made: Own: its step replaces tensors of its state (sum; seen at step 2")
    job.kill()


LATE = """
import torch
import replicad

how = ""  # what a step does that it may not

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 1, bias=False)
        self.register_buffer("scale", None)

    def forward(self, x):
        if how == "buffer":
            self.scale = torch.ones(3)
        return self.linear(x)

class Own(torch.optim.Optimizer):
    "Its state grows in later steps."
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            history = self.state[p].setdefault("history", [torch.zeros_like(p)])
            if how == "history":
                history.append(p.grad.clone())
            if how == "own":
                self.state["norm"] = p.grad.norm()
            if how == "group":
                self.param_groups[0]["norms"] = [p.grad.norm()]
            p.sub_(0.1 * p.grad)

model = Model()
optimizer = Own(model.parameters())
optimizer.state["norm"] = torch.zeros(())
session = replicad.Session(model=model, optimizer=optimizer)
session.resume()

def step():
    model(torch.ones(1, 3)).sum().backward()
    with session.step():
        print("BEGUN", how, flush=True)
        optimizer.step()
        if how == "parameter":
            model.linear.weight = torch.nn.Parameter(torch.ones(1, 3))
    optimizer.zero_grad()

step()
weight, norm, group = model.linear.weight, optimizer.state["norm"], optimizer.param_groups[0]
undo = {
    "buffer": lambda: setattr(model, "scale", None),
    "parameter": lambda: setattr(model.linear, "weight", weight),
    "history": lambda: optimizer.state[weight]["history"].pop(),
    "own": lambda: optimizer.state.update(norm=norm),
    "group": lambda: group.pop("norms"),
}
for how in undo:
    at = session.at
    try:
        step()
    except replicad.Mismatch as err:
        print("REFUSED", how, err, flush=True)
    undo[how]()
    how = ""
    assert session.at == at and session.resume() <= at
    step()
session.leave()
session.close()
"""


def test_state_that_comes_later(daemon: Daemon) -> None:
    """Refused in the first step that has it: no restart may begin with what the copies lack."""
    out = daemon.run(LATE).done()
    says = {
        "buffer": "model.scale was not there when the session was made",
        "parameter": "model.linear.weight was replaced by another tensor",
        "history": "optim.model.linear.weight.history.1 was not there when the session was made",
        "own": "optim.own.norm was replaced by another tensor",
        "group": "optim.groups[0].norms.0 was not there when the session was made",
    }
    assert [how for how, text in says.items() if f"REFUSED {how} {text}" not in out] == [], out
    assert re.findall(r"^BEGUN (parameter|history|own|group)$", out, re.M) == ["parameter", "history", "own", "group"], out


class Scale(nn.Module):
    """State that is no tensor of the module's, as in FP8 layers."""

    def get_extra_state(self) -> dict[str, Any]:
        return {}

    def set_extra_state(self, state: dict[str, Any]) -> None: ...


class Parts(nn.Module):
    """A model with state of every kind, some of which is not there yet."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 4)
        self.scaled = Scale()
        self.register_parameter("gain", None)
        self.register_buffer("scale", None)
        self.register_buffer("cache", torch.zeros(1), persistent=False)


def session_of(model: nn.Module, optimizer: Any) -> Trained:
    objects = Objects({"model": model, "optimizer": optimizer}, lambda name: False, False)
    return Trained(objects, Memory(Staging(objects.leaves, False, {})))


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.zeros(4, 4))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: setattr(m.head, "weight", parameter()), "model.head.weight was replaced by another tensor"),
        (lambda m: setattr(m.head, "weight", m.body[0].weight), "model.head.weight was replaced by another tensor"),
        (lambda m: setattr(m.head, "bias", None), "model.head.bias was replaced by another tensor"),
        (lambda m: setattr(m, "head", nn.Linear(4, 4)), "model.head.weight, model.head.bias was replaced by another tensor"),
        (lambda m: m.body.append(nn.Linear(4, 4)), "model.body.3.weight, model.body.3.bias was not there when the session was made"),
        (lambda m: m.body[0].register_parameter("more", parameter()), "model.body.0.more was not there"),
        (lambda m: setattr(m, "gain", parameter()), "model.gain was not there"),
        (lambda m: setattr(m, "scale", torch.ones(1)), "model.scale was not there"),
        (lambda m: m.register_buffer("late", torch.ones(1)), "model.late was not there"),
        (lambda m: m.body.append(nn.BatchNorm1d(4, affine=False)), "model.body.3.running_mean, model.body.3.running_var, model.body.3.num_batches_tracked was not there"),
        (lambda m: setattr(m.body[1], "running_mean", torch.ones(4)), "model.body.1.running_mean was replaced by another tensor"),
        (lambda m: m.body.append(Scale()), "model.body.3 (get_extra_state) was not there when the session was made"),
        (lambda m: m.body.append(nn.Sequential(Scale())), "model.body.3.0 (get_extra_state) was not there when the session was made"),
        (lambda m: setattr(m, "scaled", Scale()), "model.scaled (get_extra_state) was not there when the session was made"),
        (lambda m: parametrizations.weight_norm(m.head), "model.head.parametrizations.weight.original0, model.head.parametrizations.weight.original1 was not there"),
    ],
)
def test_a_model_that_gets_other_tensors(change: Callable[[Any], Any], says: str) -> None:
    """By name, at every look until it is undone; and what comes with a module that is put in the tree later is looked at as well."""
    model = Parts()
    trained = session_of(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    trained.check()
    change(model)
    for _ in range(2):
        with pytest.raises(Mismatch) as why:
            trained.check()
        assert str(why.value).startswith(says)


class Alike(nn.Linear):
    """A module that equals every other."""

    __hash__ = nn.Linear.__hash__

    def __eq__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize("what", ["parameter", "buffer", "module", "state", "group", "held"])
def test_what_is_replaced_by_its_equal(what: str) -> None:
    """One number that equals another is another tensor all the same, and in no copy."""
    model = Alike(1, 1, bias=False)
    model.register_buffer("count", torch.ones(()))
    model.inner = Alike(1, 1, bias=False)  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), capturable=False, foreach=False)
    trained = session_of(model, optimizer)
    trained.check()
    group, inner = optimizer.param_groups[0], Alike(1, 1, bias=False)
    state = optimizer.state[model.weight]
    inner.weight.data.copy_(model.inner.weight.data)  # type: ignore[union-attr, arg-type]
    changes: dict[str, Callable[[], Any]] = {
        "parameter": lambda: setattr(model, "weight", nn.Parameter(model.weight.detach().clone())),
        "buffer": lambda: setattr(model, "count", torch.ones(())),
        "module": lambda: setattr(model, "inner", inner),
        "state": lambda: state.update(exp_avg=state["exp_avg"].clone()),
        "group": lambda: group.update(lr=group["lr"].clone()),
        "held": lambda: group.update(params=[model.weight.detach().clone(), *group["params"][1:]]),
    }
    changes[what]()
    with pytest.raises(Mismatch, match=r"was replaced by another tensor|lost or reordered|got "):
        trained.check()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "cache", torch.ones(2)),
        lambda m: m.register_buffer("table", torch.ones(3), persistent=False),
        lambda m: m.body.append(nn.GELU()),
        lambda m: setattr(m, "body", nn.Sequential(*m.body)),
        lambda m: setattr(m, "head", torch.compile(m.head, backend="eager")),
        lambda m: setattr(m, "head", nn.Sequential(m.head)),
        lambda m: setattr(m, "body", nn.SyncBatchNorm.convert_sync_batchnorm(m.body)),
        lambda m: delattr(m, "head"),
        lambda m: setattr(m, "scaled", nn.Sequential(m.scaled)),
        lambda m: delattr(m, "scaled"),
        lambda m: torch.func.functional_call(m.head, {"weight": torch.ones(4, 4)}, torch.ones(1, 4)),
        lambda m: m.body(torch.ones(2, 4)),
    ],
)
def test_a_model_that_has_the_same_tensors(change: Callable[[Any], Any]) -> None:
    """However they are put together; and what a state_dict would not have, either."""
    model = Parts()
    trained = session_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    change(model)
    trained.check()
    model.body[0].weight = parameter()  # it looks at what is there now
    with pytest.raises(Mismatch, match=r"^model\.body\.0\.weight was replaced"):
        trained.check()


def test_weights_that_are_tied() -> None:
    model = Parts()
    model.head.weight = model.body[0].weight
    trained = session_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.head.weight = model.body[0].weight  # as tie_weights() does
    trained.check()
    model.head.weight = parameter()
    with pytest.raises(Mismatch, match=r"^model\.head\.weight was replaced"):
        trained.check()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s, o, g: s["d"].update(late=torch.ones(1)), "optim.model.weight.d.late was not there"),
        (lambda s, o, g: s["d"]["in"].append((0, torch.ones(1))), "optim.model.weight.d.in.1.1 was not there"),
        (lambda s, o, g: s.update(d={"in": [torch.ones(1)]}), "optim.model.weight.d.in.0 was replaced by another tensor"),
        (lambda s, o, g: s["d"]["in"].pop(), "optim.model.weight.d.in.0 was replaced by another tensor"),
        (lambda s, o, g: s["momentum_buffer"].set_(torch.ones(4, 4)), "optim.model.weight.momentum_buffer has moved to other memory"),
        (lambda s, o, g: o.update(norm=torch.ones(1)), "optim.own.norm was replaced by another tensor"),
        (lambda s, o, g: o.update(other={"norm": torch.ones(1)}), "optim.own.other.norm was not there"),
        (lambda s, o, g: g.update(run=torch.ones(1)), "optim.groups[0].run was not there"),
        (lambda s, o, g: g.update(betas=(torch.ones(1), 0.9)), "optim.groups[0].betas.0 was replaced by another tensor"),
        (lambda s, o, g: g.pop("betas"), "optim.groups[0].betas.0 was replaced by another tensor"),
        (lambda s, o, g: s.update(n=2, d={"in": list(s["d"]["in"]), "count": [1.5]}), ""),
        (lambda s, o, g: s.update(momentum_buffer=s.pop("momentum_buffer")), ""),
        (lambda s, o, g: g.update(lr=0.5, betas=(g["betas"][0], 0.5), more=[1, 2]), ""),
        (lambda s, o, g: o.update(calls=7), ""),
    ],
)
def test_an_optimizer_that_gets_other_tensors(change: Callable[[Any, Any, Any], Any], says: str) -> None:
    """At any depth of its state, under keys of its own, and in its groups. What is no tensor may change: it is kept as a value."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "betas": (torch.zeros(1), 0.9)}], lr=0.1, momentum=0.9)
    materialise(optimizer)
    state: Any = optimizer.state
    state[model.weight] |= {"n": 1, "d": {"in": [torch.zeros(1)]}}
    state["norm"] = torch.zeros(1)
    trained = session_of(model, optimizer)
    trained.check()
    change(state[model.weight], state, optimizer.param_groups[0])
    for _ in range(2):
        if not says:
            trained.check()
            continue
        with pytest.raises(Mismatch) as why:
            trained.check()
        assert str(why.value).startswith(says)


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

class Counts(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.register_buffer("count", torch.tensor(0))

model = Counts()
frozen = torch.nn.Linear(2, 1).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model={"model": model, "frozen": frozen}, optimizer=optimizer)
session.resume()
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
    with session.step():
        optimizer.step()
        model.count += 1
        with torch.no_grad():
            frozen.weight.add_(1)
for name, text in sorted(session.noticed.items()):
    print("NOTICED", name, text)
session.leave()
session.close()
"""


def test_what_changes_at_another_time_than_it_is_copied_is_named(daemon: Daemon) -> None:
    out = daemon.run(NAMED).done()
    assert "NOTICED" not in out, out  # both are kept now: the buffer with the step, the frozen weight from that step on
    assert "the job keeps more from here on, in epoch 2: model.frozen.weight change now" in out


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
    steps: list[str] = []
    handles = [register_optimizer_step_pre_hook(lambda *_: steps.append("every pre"))]
    handles += [register_optimizer_step_post_hook(lambda *_: steps.append("every post"))]
    handles += [optimizer.register_step_post_hook(lambda *_: steps.append("post")), optimizer.register_step_pre_hook(lambda *_: (steps.append("pre"), torch.rand(1))[:0] or None)]
    before = torch.get_rng_state()
    materialise(optimizer)
    assert steps == [] and torch.equal(before, torch.get_rng_state())
    p.grad = torch.ones(2)
    optimizer.step()
    assert sorted(steps) == ["every post", "every pre", "post", "pre"]
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
session = replicad.Session(model=model, optimizer=optimizer, debug=sys.argv[1] == "draws")
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
for how in sys.argv[1].split(","):  # one after the other, where what is noticed of one says nothing of the next
    if how == "outside":
        try:
            optimizer.step()
        except replicad.SessionState as err:
            print("REFUSED", err)
    if how == "dropped":
        train(updated=False), optimizer.zero_grad(), train()
    if how == "carried":
        train(updated=False), train()
    print("NOTICED", how, sorted(session.noticed))
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
        (
            "nothing,outside,dropped,carried",
            [
                "NOTICED nothing []",
                "REFUSED SGD.step() outside of `with session.step()`: the copy of step 1 may be under way",
                "NOTICED outside []",
                "NOTICED dropped []",
                "NOTICED carried ['gradients']",
                "gradients that step 4 left (updated=False) were changed before step 5",
            ],
        ),
        ("draws", ['NOTICED draws ["torch\'s CPU generator, after resume"]', "were drawn between resume and the first forward"]),
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


def test_an_optimizer_whose_state_is_a_mapping_of_its_own() -> None:
    """It is looked at as any other: tensors that come later are refused by name."""

    class State(UserDict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            return self.data.setdefault(key, {})

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state = State()  # type: ignore[assignment]
    trained = Trained(Objects({"model": model, "optimizer": optimizer}, lambda name: False, False), Memory(Staging([], False, {})))
    trained.check()
    optimizer.state[model.weight]["late"] = torch.zeros(2)
    with pytest.raises(Mismatch, match=r"optim\.model\.weight\.late was not there"):
        trained.check()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_scripted_model() -> None:
    """It takes no hooks, by which a session sees the next step begin; inside of an eager module it is as good as any."""
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    with pytest.raises(Unsupported, match=r"model: a module of torch\.jit\.script takes no hooks: register an eager module that has it inside"):
        Objects({"model": scripted}, lambda name: False, False)
    kept = Objects({"model": torch.nn.Sequential(scripted, torch.nn.Linear(2, 1))}, lambda name: False, False)
    assert [x.name for x in kept.leaves][:2] == ["model.0.0.weight", "model.0.0.bias"]
    assert [m.register_forward_pre_hook(lambda *_: None) for m in kept.modules()]
