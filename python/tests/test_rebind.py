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
