"""What was made anew takes the place of what a session was made with if all of it is alike; otherwise nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from anew import Mean, model, optimizer
from conftest import Daemon
from replicad._torch.memory import Memory
from replicad._torch.objects import Objects
from replicad._torch.staging import Staging
from replicad._torch.tensors import Leaf
from replicad.errors import Mismatch, SessionState


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 5}, "model.0.weight is float32 (5, 4), trained, was float32 (4, 4), trained"),
        ({"frozen": True}, "model.0.bias is float32 (4,), frozen, was float32 (4,), trained"),
        ({"more": True}, "model.2.weight is new"),
        ({"double": True}, "model.0.weight is float64 (4, 4), trained, was float32 (4, 4), trained"),
        ({"without": True}, "model.1.running_mean is missing"),
    ],
)
def test_another_model(changes: dict[str, object], words: str) -> None:
    m = model()
    objects = Objects({"model": m, "optimizer": optimizer(m)}, lambda name: False, False)
    other = model(**changes)
    with pytest.raises(Mismatch) as why:
        objects.replaced({"model": other, "optimizer": optimizer(other)})
    assert words in str(why.value)
    assert objects.models == {"model": m}


def test_whose_a_buffer_is() -> None:
    m, shared = model(), set[str]()
    objects = Objects({"model": m}, lambda name: name in shared, False)
    shared.add("model.1.running_var")
    with pytest.raises(Mismatch, match=r"model.1.running_var is float32 \(4,\), a buffer, was float32 \(4,\), a buffer, the rank's own"):
        objects.replaced({"model": model()})


def test_other_names() -> None:
    m = model()
    objects = Objects({"model": m, "extra": {"mean": Mean()}, "data": Mean()}, lambda name: False, False)
    with pytest.raises(Mismatch, match=r"rebind: model is model\.a, and the session has model: give all that"):
        objects.replaced({"model": {"a": model()}})
    with pytest.raises(Mismatch, match="rebind: extra is average, and the session has mean"):
        objects.replaced({"extra": {"average": Mean()}})
    with pytest.raises(Mismatch, match="rebind: data is nothing, and the session has data"):
        objects.replaced({"data": ()})
    with pytest.raises(SessionState, match="mean: int has no state_dict and load_state_dict"):
        objects.replaced({"extra": {"mean": 3}})


SESSION = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch
import replicad
from anew import Mean, model, optimizer

torch.manual_seed(1)
m = model()
o, mean = optimizer(m), Mean()
session = replicad.Session(model=m, optimizer=o, extra={"mean": mean}, staging=True)
session.resume()

def step():
    m(torch.ones(2, 4)).square().sum().backward()
    with session.step() as n:
        o.step()
        mean.value += n
    o.zero_grad()

def new(**changes):
    global m2
    m2 = model(**changes)
    return m2

step()
for what, given in {
    "model without its optimizer's state": lambda new: {"model": new(), "optimizer": optimizer(m2, momentum=0.0)},
    "another model": lambda new: {"model": new(frozen=True), "optimizer": optimizer(m2), "extra": {"mean": Mean()}},
    "another object": lambda new: {"model": new(), "optimizer": optimizer(m2), "extra": {"mean": Mean(), "more": Mean()}},
}.items():
    try:
        session.rebind(**given(new))
    except replicad.Mismatch as err:
        print("REFUSED", what, err, flush=True)
    step()  # of the old ones
assert session.commit() == 4
was = [p.detach().clone() for p in m.parameters()] + [o.state[p]["momentum_buffer"].clone() for p in m.parameters()]
m = model()
o, mean = optimizer(m), Mean()
session.rebind(model=m, optimizer=o, extra={"mean": mean})
if os.environ.get("AGAIN") is None:
    session.rank.fail("a fence, so that there is something to resume")
    session.rank.wait_fence(60.0)
assert session.resume() == 4
now = [p.detach() for p in m.parameters()] + [o.state[p]["momentum_buffer"] for p in m.parameters()]
assert all(torch.equal(a, b) for a, b in zip(was, now, strict=True)), (was, now)
assert mean.value == 10.0
step()
session.leave()
session.close()
print("DONE", flush=True)
"""


def test_a_refused_rebind_changes_nothing(daemon: Daemon) -> None:
    out = daemon.run(SESSION, str(Path(__file__).parent)).done()
    assert "REFUSED model without its optimizer's state rebind: optim.model.0.weight.momentum_buffer is missing" in out, out
    assert "model.0.bias is float32 (4,), frozen, was float32 (4,), trained: rebind takes" in out, out
    assert "REFUSED another object rebind: extra is mean, more, and the session has mean" in out, out
    assert "DONE" in out


MOVED = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import replicad
from anew import model, optimizer

torch.manual_seed(1)
m = model()
o = optimizer(m)
weight, norm, state = m[0].weight, m[1], o.state
scheduler = torch.optim.lr_scheduler.ConstantLR(o, 1.0)
session = replicad.Session(model=m, optimizer=o, scheduler=scheduler)
session.resume()

def step():
    m(torch.ones(2, 4)).square().sum().backward()
    with session.step():
        o.step()
        scheduler.step()
    o.zero_grad()

def data(new):
    weight.data = new

def kept():
    return {p: p.data for p in m.parameters()}, {k: b for x in m.modules() for k, b in x._buffers.items()}, o.state, o.param_groups

def undo(was):
    for p, d in was[0].items():
        p.data = d
    for k, b in was[1].items():
        setattr(norm, k, b)
    o.state, o.param_groups = was[2], was[3]

step()
for what, change in {
    ".to()": lambda: m.to("cpu:0"),
    "data": lambda: data(weight.detach().clone()),
    "grown": lambda: data(torch.zeros(8, 4)),
    "shrunk": lambda: data(weight.detach()[:2]),
    "turned": lambda: data(weight.detach().t()),
    "state": lambda: o.load_state_dict(o.state_dict()),
    "buffer": lambda: setattr(norm, "running_mean", norm.running_mean.clone()),
}.items():
    was = kept()
    change()
    at = session.at
    calls = [lambda: session.rebind(scheduler=torch.optim.lr_scheduler.ConstantLR(o, 1.0)), lambda: session.rebind(extra={}), session.resume]
    for call in calls:
        try:
            call()
        except replicad.Mismatch as err:
            print("REFUSED", what, err, flush=True)
        else:
            raise AssertionError(f"{what}: {call} took it")
    undo(was)
    assert session.at == at
    step()
assert session.commit() == 8
scheduler = torch.optim.lr_scheduler.ConstantLR(o, 1.0)
session.rebind(scheduler=scheduler)
assert session.resume() == 8
step()
session.leave()
session.close()
print("DONE", flush=True)
"""


def test_a_rebind_of_something_else_does_not_hide_what_was_moved(daemon: Daemon) -> None:
    """Nor does a resume: each names it, and changes nothing."""
    out = daemon.run(MOVED, str(Path(__file__).parent)).done()
    said = [line for line in out.splitlines() if line.startswith("REFUSED")]
    calls = dict.fromkeys([".to()", "data", "grown", "shrunk", "turned", "state", "buffer"], 3)
    assert [line.split()[1] for line in said] == [what for what, n in calls.items() for _ in range(n)], out
    for what, words in {
        ".to()": "model.1.running_mean, model.1.running_var",
        "data": "model.0.weight has moved to other memory (`.data =`, .to())",
        "grown": "model.0.weight (shape (8, 4), was (4, 4)): it is laid out otherwise",
        "shrunk": "model.0.weight (shape (2, 4), was (4, 4))",
        "turned": "model.0.weight (strides (1, 4), was (4, 1))",
        "state": "optim.state was replaced by another tensor",
        "buffer": "model.1.running_mean was replaced by another tensor",
    }.items():
        assert all(words in line for line in said if line.split()[1] == what), out
    assert "DONE" in out


LAID = """
import sys
import torch
import replicad

class Squares(torch.nn.Module):  # what has the same shape in every order
    def __init__(self):
        super().__init__()
        self.flat, self.deep = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(3, 3, 3, 3))
        self.register_buffer("statistic", torch.randn(4, 4))
        self.register_buffer("image", torch.randn(3, 3, 3, 3).to(memory_format=torch.channels_last))

torch.manual_seed(1)
m = Squares()
o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
session = replicad.Session(model=m, optimizer=o, shared_buffers=lambda name: sys.argv[1] == "shared")
session.resume()
moments = [o.state[p]["momentum_buffer"] for p in m.parameters()]
flat = {"model.flat": m.flat, "model.statistic": m.statistic, "optim.model.flat.momentum_buffer": moments[0]}
deep = {"model.deep": m.deep, "model.image": m.image, "optim.model.deep.momentum_buffer": moments[1]}

def must(ok, *what):
    if not ok:
        raise replicad.Mismatch(repr(what))  # which ends the job

def step(between=lambda: None, inside=lambda: None):
    for t in (m.statistic, m.image):
        t.add_(torch.randn_like(t))
    sum(p.pow(3).sum() for p in m.parameters()).backward()
    between()
    with session.step():
        o.step()
        inside()
    o.zero_grad()

def turn(t): t.data = t.data.t()
def strided(t):
    with torch.no_grad():
        t.as_strided_(t.shape, t.stride()[::-1])
def permute(t): t.data = t.data.permute(1, 2, 3, 0)
def last(t): t.data = t.data.to(memory_format=torch.contiguous_format if t is m.image else torch.channels_last)

cases = [(n, t, c) for ts, cs in ((flat, (turn, strided)), (deep, (permute, last))) for n, t in ts.items() for c in cs]
for name, t, change in cases:
    for when in ("between", "inside"):
        step()
        at = session.commit()
        everything = [*m.state_dict().values(), *moments]
        want, was = [x.clone() for x in everything], t.data
        try:
            step(**{when: lambda: change(t)})
        except replicad.Mismatch as err:
            print("REFUSED", name, change.__name__, when, err, flush=True)
        must(session.at == at and session.committed == at, name, change, when, session.at, session.committed)
        t.data = was
        for x in everything:
            x.zero_()
        if session._torn < 0:
            session.rank.fail("a fence, where the step was refused before it began")
        session.rank.wait_fence(60.0)
        must(session.resume() == at, name, change, when)
        must(all(map(torch.equal, [*m.state_dict().values(), *moments], want)), name, change, when)
step()
session.leave()
session.close()
print("DONE", flush=True)
"""


@pytest.mark.parametrize("whose", ["own", "shared"])
def test_what_is_laid_out_otherwise_is_refused_at_the_next_step(whose: str, daemon: Daemon) -> None:
    """Of the same shape and at the same address, too: between two steps and inside of one. The step before it stays committed, and nothing of the refused one counts."""
    out = daemon.run(LAID, whose).done()
    said = [line for line in out.splitlines() if line.startswith("REFUSED")]
    changes = {"flat": ("turn", "strided"), "deep": ("permute", "last")}
    names = {"flat": ("model.flat", "model.statistic", "optim.model.flat.momentum_buffer"), "deep": ("model.deep", "model.image", "optim.model.deep.momentum_buffer")}
    cases = [(n, c, w) for kind in names for n in names[kind] for c in changes[kind] for w in ("between", "inside")]
    assert [tuple(line.split()[1:4]) for line in said] == cases, out
    for line in said:
        name, change = line.split()[1:3]
        assert f" {name} has moved to other memory" in line if change == "last" else f" {name} (" in line and "it is laid out otherwise" in line, line
    assert "DONE" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.set_(t.data.t()), "x (strides"),
        (lambda t: t.as_strided_((4, 4), (4, 1), 4), "x has moved"),
        (lambda t: t.as_strided_((8, 2), (4, 1)), "x (shape (8, 2), was (4, 4)"),
        (lambda t: t.as_strided_((4, 4), (0, 1)), "x (strides (0, 1), was"),
        (lambda t: t.resize_(2, 8), "x (shape (2, 8), was (4, 4)"),
        (lambda t: setattr(t, "data", t.data.view(torch.int32)), "x (type int32, was float32)"),
        (lambda t: t.unsqueeze_(0), "x (shape (1, 4, 4), was (4, 4))"),
        (lambda t: setattr(t, "data", t.data.clone()), "x has moved"),
    ],
)
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_whatever_says_how_bytes_are_read_is_asked(order: str, change: Callable[[torch.Tensor], object], words: str) -> None:
    t = torch.arange(32.0)[:16].view(4, 4)
    if order == "columns":
        t = t.t()
    memory = Memory(Staging([Leaf("x", t, "window")], False, {}))
    memory.check()
    change(t)
    with pytest.raises(Mismatch) as why:
        memory.check()
    assert str(why.value).startswith(words)


def test_a_stride_of_no_consequence_is_none() -> None:
    t = torch.arange(4.0).view(1, 4)
    memory = Memory(Staging([Leaf("x", t, "window")], False, {}))
    t.as_strided_((1, 4), (1, 1))
    memory.check()


def test_what_is_staged_may_lie_in_any_order_but_not_be_of_another_type() -> None:
    t = torch.arange(16.0).view(4, 4)
    memory = Memory(Staging([Leaf("x", t, "window")], True, {}))
    t.data = t.data.t().clone()
    memory.check()
    t.data = t.data.double()
    with pytest.raises(Mismatch, match=r"x \(type float64, was float32\)"):
        memory.check()


REMEDIES = """
import sys
import torch
import replicad

class Grows(torch.nn.Module):  # as per-channel observers do
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.seen.numel() == 1:
            self.seen.resize_(4)
        self.seen.copy_(x.amax(0))
        return self.linear(x)

torch.manual_seed(1)
staging = sys.argv[1] == "staging"
m = Grows()
x = torch.ones(2, 4)
m(x)  # gives the buffer its full size
m.to("cpu:0")  # before
o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
session = replicad.Session(model=m, optimizer=o, scheduler=torch.optim.lr_scheduler.ConstantLR(o, 1.0), staging=staging)
session.resume()

def steps(n):
    for _ in range(n):
        o.zero_grad()
        m(x).square().sum().backward()
        with session.step():
            o.step()
    return session.commit()

steps(2)
if staging:
    for p in m.parameters():
        p.data = p.data.clone()
else:
    with torch.no_grad(), session.step():
        for p in m.parameters():
            p.copy_(p + 1)
session.rebind(scheduler=torch.optim.lr_scheduler.ConstantLR(o, 1.0))
session.resume()
at = steps(3)
want = [t.detach().clone() for t in m.state_dict().values()]
session.rank.fail("lost on purpose")
session.rank.wait_fence()
for t in m.state_dict().values():
    t.zero_()
assert session.resume() == at
assert all(map(torch.equal, m.state_dict().values(), want)), (m.state_dict(), want)
session.leave()
session.close()
print("DONE", flush=True)
"""


@pytest.mark.parametrize("how", ["in place", "staging"])
def test_what_to_do_instead(how: str, daemon: Daemon) -> None:
    """Each remedy that the refusals name: moved and grown before the session is made, copied into, or staged."""
    assert "DONE" in daemon.run(REMEDIES, how).done()


TRAINER = """
import hashlib, sys
import torch
import replicad

torch.manual_seed(1)
m = torch.nn.Linear(4, 4)
o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
session = replicad.Session(model=m, optimizer=o, scheduler=torch.optim.lr_scheduler.ConstantLR(o, 1.0), staging=sys.argv[1] == "staging")
failed = []

@replicad.inprocess.wrap(session)
def train(call):
    if failed or session.at >= 0:
        m.to("cpu:0")  # as a trainer prepares its model in each run
        for p in m.parameters():
            p.data = p.data.clone()
    scheduler = torch.optim.lr_scheduler.ConstantLR(o, 1.0)
    session.rebind(scheduler=scheduler)
    for step in range(session.resume() + 1, 9):
        m(torch.full((2, 4), float(step))).square().mean().backward()
        with session.step():
            o.step()
            scheduler.step()
        o.zero_grad()
        session.commit()
        if step == 4 and session.rank.number == 1 and not failed:
            failed.append(step)
            raise ValueError("lost on purpose")
    session.leave()

train()
print("END", hashlib.sha256(m.weight.detach().numpy().tobytes()).hexdigest(), flush=True)
session.close()
"""


@pytest.mark.parametrize("how", ["in place", "staging"])
def test_a_trainer_that_moves_its_model_in_each_run(how: str, daemon: Daemon) -> None:
    """Two ranks go on in their processes: neither ends well with weights of its own."""
    job = daemon.run(TRAINER, how, world=2)
    code, out = job.wait(), str(job.out)
    if how == "staging":
        ends = [line for line in out.splitlines() if line.startswith("END")]
        assert code == 0 and len(ends) == 2 and len(set(ends)) == 1, out
    else:
        assert code == 5 and "END" not in out and "has moved to other memory" in out, out
