"""What was made anew takes the place of what a session was made with if all of it is alike; otherwise nothing has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from anew import Mean, model, optimizer
from conftest import Daemon
from replicad._torch.objects import Objects
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
    for call in calls + [session.step().__enter__] * (what in (".to()", "buffer")):
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
    """Nor does a resume, nor the beginning of a step: each names it, and changes nothing."""
    out = daemon.run(MOVED, str(Path(__file__).parent)).done()
    said = [line for line in out.splitlines() if line.startswith("REFUSED")]
    calls = {".to()": 4, "data": 3, "grown": 3, "shrunk": 3, "turned": 3, "state": 3, "buffer": 4}
    assert [line.split()[1] for line in said] == [what for what, n in calls.items() for _ in range(n)], out
    for what, words in {
        ".to()": "model.1.running_mean, model.1.running_var",
        "data": "model.0.weight has moved to other memory (`.data =`, .to())",
        "grown": "model.0.weight (elements 32, was 16): it is laid out otherwise",
        "shrunk": "model.0.weight (elements 8, was 16)",
        "turned": "model.0.weight (strides (1, 4), was (4, 1))",
        "state": "optim.state was replaced by another tensor",
        "buffer": "model.1.running_mean was replaced by another tensor",
    }.items():
        assert all(words in line for line in said if line.split()[1] == what), out
    assert "DONE" in out


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
