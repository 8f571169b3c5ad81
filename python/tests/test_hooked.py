"""Steps that a trainer's hooks begin and end, what a program says of its objects, and who is told of epochs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

import replicad
from conftest import Daemon
from replicad import Invalid, Mismatch, SessionState, Unsupported
from replicad._core.life import Life
from replicad._core.reports import Reports
from replicad._torch.derived import Derived
from replicad._torch.held import Held, behind_closure
from replicad._torch.loop import Loop
from replicad._torch.objects import Objects
from replicad._torch.told import Told
from replicad.adapters._loop import Attributes, want

PROGRAM = """
import torch, replicad
from replicad import inprocess

torch.set_num_threads(1)
torch.manual_seed(1)


class Numbers:
    "State that grows and shrinks, and that changes between steps."
    def __init__(self):
        self.seen, self.rows = 0, []
    def state_dict(self):
        return {"seen": self.seen, "rows": list(self.rows)}
    def load_state_dict(self, state):
        self.seen, self.rows = state["seen"], list(state["rows"])


class Half(torch.nn.Module):
    "Computes with 16-bit weights that follow from others."
    def __init__(self):
        super().__init__()
        self.full, self.bits = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1, dtype=torch.bfloat16)
        self.bits.requires_grad_(False)
        self.rebuild()
    def rebuild(self):
        with torch.no_grad():
            for h, f in zip(self.bits.parameters(), self.full.parameters()):
                h.copy_(f)
    def forward(self, x):
        return self.full(x) + self.bits(x.bfloat16()).float()


model = Half()
optimizer = torch.optim.SGD(model.full.parameters(), lr=0.1, momentum=0.9)
progress, buffered, rebuilt = Numbers(), Numbers(), []


def rebuild():
    rebuilt.append(model.full.weight.detach().clone())
    model.rebuild()


session = replicad.Session(
    model, optimizer, extra={"progress": replicad.moves(progress), "buffered": replicad.own(buffered, most=4096)}, derived={"model.bits.*": rebuild}, strict=True
)
print("ADVICE", [str(v.reason) for v in session.explain().advice])
told = []
session.on_resumed(lambda resumed: told.append(("resumed", int(resumed), resumed.source)))
gone = session.on_resumed(lambda resumed: told.append("removed"))
gone.remove()
session.on_lost(lambda step: told.append(("lost", step)))
session.on_lost(lambda step: 1 / 0)


def refused(call, *args):
    try:
        call(*args)
    except replicad.SessionState as err:
        return str(err)
    raise AssertionError("not refused")


def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    return loss


def begins():
    loss = closure()
    session.step_begin()
    return loss


def train(step):
    "As a trainer does whose hooks stand around the update."
    progress.seen += 1  # between steps, and known to be right
    optimizer.step(begins)
    model.rebuild()
    buffered.rows = [torch.full((4000 if step == 8 else step % 3 + 1,), float(step))]
    if step == 6:
        session.follow("evaluate")
    assert session.step_end() == step
    progress.rows.append(step)
    if step == 6:
        buffered.rows.append(torch.zeros(1))
        session.done("evaluate")


def state():
    return [t.tolist() for t in (model.full.weight, model.bits.weight, optimizer.state[model.full.weight]["momentum_buffer"])]


kept, calls = {}, []


@inprocess.wrap(session, finalize=[lambda call: calls.append((call.runs, call.steps, call.resumed, type(call.last).__name__)), *inprocess.default_finalize()], health=[])
def block(call):
    if call.runs > 3:
        raise SystemExit(78)  # something else has failed, which is above
    assert (call.resumed, call.steps, call.step) == (None, 0, -1 if call.runs == 1 else session.at)
    start = session.resume()
    assert call.resumed is start and call.step == start
    if call.runs == 1:
        assert "no step is open" in refused(session.step_end)
        before = model.full.weight.tolist()
        assert "outside of `with session.step()`" in refused(optimizer.step, closure) and model.full.weight.tolist() == before
        assert "Call step() of every registered optimizer" in refused(optimizer.step)
        session.step_end(ValueError("seen by the trainer between two steps"))
    else:
        assert state() == kept[int(start)][0] and (progress.seen, progress.rows, [t.tolist() for t in buffered.rows]) == kept[int(start)][1], (start, kept)
        assert torch.equal(rebuilt[-1], model.full.weight)
    for step in range(start + 1, 10):
        train(step)
        if step == 2 and call.runs == 1:
            with session.step() as number:
                assert "begun by `with session.step()`" in refused(session.step_end)
                kept[number] = state(), (progress.seen, list(progress.rows), [t.tolist() for t in buffered.rows])
            session.commit()
            closure()
            session.step_begin()
            for what in (session.step_begin, session.commit, session.leave, session.offload().__enter__, session.rebind):
                assert "inside of step 4, which session.step_begin() has begun: call session.step_end() first" in refused(what), what
            optimizer.step()
            raise ValueError("in a user's hook")
        if step == 5 and call.runs == 2:
            kept[step] = state(), (progress.seen, list(progress.rows)[:-1], [t.tolist() for t in buffered.rows])
            session.commit()
            closure()
            session.step_begin()
            session.step_end(replicad.Fenced("as a trainer has seen it"))
            raise RuntimeError("another, which comes after that")
        if step == 7:
            assert session.noticed == {}, session.noticed
            print("TOLD", told)
            print("CALLS", calls, flush=True)


block()
"""


def test_a_trainers_steps(daemon: Daemon) -> None:
    job = daemon.run(PROGRAM)
    assert job.wait() == 5, "what is too large ends the job"
    out = job.printed()
    assert "ADVICE ['model.bits.weight, model.bits.bias: in no copy, and made anew from others after each load']" in out
    assert "the optimizer step 4: ValueError: in a user's hook" in out
    assert "step 6 was never ended: its update is not kept" in out
    assert "a hook of on_lost failed after step 3: ZeroDivisionError" in out
    assert re.search(r"TOLD \[\('resumed', 0, 'fresh'\), \('lost', 3\), \('resumed', 3, 'own-ram'\), \('lost', 5\), \('resumed', 5, 'own-ram'\)\]", out), out
    assert "CALLS [(1, 0, None, 'ValueError'), (2, 0, None, 'RuntimeError')]" in out
    assert re.search(r"Mismatch: buffered takes \d+ bytes \(rows takes most\), and replicad.own\(..., most=4096\) was said: give a larger most=", out), out


def test_the_same_hooks_without_a_launcher() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = replicad.Session(model, optimizer, enabled=False)
    told: list[Any] = []
    session.on_resumed(told.append)
    with pytest.raises(SessionState, match="before resume"):
        session.step_begin()
    assert session.resume() == 0 and told == [0]
    assert (session.step_begin(), session.step_end()) == (1, 1)
    with pytest.raises(SessionState, match="no step is open"):
        session.step_end()
    session.step_begin()
    session.follow("evaluate")
    with pytest.raises(SessionState, match=r"call session.step_end\(\) first"):
        session.step_begin()
    assert session.resume() == 1 and session.due == (), "the open step is given up"
    session.step_begin()
    assert session.step_end(ValueError("seen")) == 1
    session.step_end(ValueError("seen once more"))


def test_a_closure_is_looked_behind() -> None:
    seen: list[str] = []
    assert behind_closure((1,), {}, lambda: None) is None
    assert behind_closure((1, None), {}, lambda: None) is None
    for args, kwargs in (((1, lambda: "loss", 2), {}), ((1,), {"closure": lambda: "loss", "more": 3})):
        new = behind_closure(args, kwargs, lambda: seen.append("looked"))
        assert new is not None
        now, named = new
        assert (now[1] if len(now) > 1 else named["closure"])() == "loss"
        assert now[2:] == args[2:] and {k: v for k, v in named.items() if k != "closure"} == {k: v for k, v in kwargs.items() if k != "closure"}
    assert seen == ["looked", "looked"]


def test_a_block_that_hooks_hold() -> None:
    held = Held()
    with pytest.raises(SessionState, match=r"`with session.step\(\)`, which ends it"):
        held.end(inside=object())
    held.tear(ValueError("nothing is open"))
    assert not held


def test_a_block_that_is_given_up_reports_nothing() -> None:
    """It ends as nobody holds it any more, which is no fault of the step: the next epoch would be told of one."""
    session = object.__new__(replicad.Session)
    session._life, session._held, session._at, session._torn = Life(), Held(), 3, -1
    session._loop, session._rank = Loop(), SimpleNamespace(freeze_good=lambda: None)
    session._reports = Reports(session._rank, session._life)

    @contextmanager
    def step() -> Iterator[int]:
        session._life.inside = mark = object()
        try:
            yield 4
        except BaseException as err:
            if session._life.inside is mark:
                session._tear(4, err)
            raise

    session._held.begin(step())
    session._abandon()
    assert (session._reports._late, session._torn, session._at, session._life.inside) == ("", 4, 3, None)


def test_who_is_told_of_an_epoch_is_told_once() -> None:
    told, heard = Told(), []
    told.on_lost(heard.append)
    told.lost(0)
    told.resumed(3)
    told.lost(5)
    told.lost(5)
    assert heard == [5]


def test_a_version_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    has = {"transformers": "5.20.0", "lightning": "2.6.6+local"}
    monkeypatch.setattr("importlib.metadata.version", lambda package: has[package])
    want("transformers", "5.20")
    want("lightning", "2.6")
    for version in ("4.57.1", "5.19.9", "6.0.0.dev0"):
        has["transformers"] = version
        with pytest.raises(Unsupported, match=re.escape(f"transformers {version}: want 5.20 to 5.x (pip install 'transformers>=5.20,<6')")):
            want("transformers", "5.20")
    # Before 1.0 a minor version may change all.
    for least, most, good, bad, text in (
        ("0.19", None, ("0.19.0", "0.19.8"), ("0.18.9", "0.20.0", "0.20.0rc1", "1.0"), "want 0.19 to 0.19.x (pip install 'some>=0.19,<0.20')"),
        ("0.16", "0.19", ("0.16.1", "0.17.0", "0.19.2"), ("0.15.3", "0.20.0", "1.0.0"), "want 0.16 to 0.19.x (pip install 'some>=0.16,<0.20')"),
    ):
        for has["some"] in good:
            want("some", least, most=most)
        for has["some"] in bad:
            with pytest.raises(Unsupported, match=re.escape(text)):
                want("some", least, most=most)
    monkeypatch.undo()
    with pytest.raises(ImportError, match=r"pip install 'no-such-package>=1\.2'"):
        want("no-such-package", "1.2")


def test_attributes_are_state() -> None:
    class Progress:
        step, epoch = 3, 0.5

    one, other = Progress(), Progress()
    one.step = 7
    Attributes(other, "step", "epoch").load_state_dict(Attributes(one, "step", "epoch").state_dict())
    assert (other.step, other.epoch) == (7, 0.5)
    with pytest.raises(Mismatch, match="Progress: the copy has step, want epoch, step"):
        Attributes(other, "step", "epoch").load_state_dict({"step": 1})


class Counter:
    def state_dict(self) -> dict[str, int]:
        return {"n": 1}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def test_tensors_that_are_made_together_are_made_once() -> None:
    made: list[str] = []

    def make() -> None:
        made.append("all")

    derived = Derived({"model.a": make, "model.b": make, "head.*": list})
    assert [name for name in ("model.a", "model.b", "model.ab", "head.a") if derived.has(name)] == ["model.a", "model.b", "head.a"]
    derived.rebuild()
    assert made == ["all"]


def test_what_is_said_of_an_object_must_fit() -> None:
    model = torch.nn.Linear(2, 2)
    for make, err, text in (
        (lambda: replicad.moves(object()), SessionState, "moves: object has no state_dict"),
        (lambda: replicad.own(Counter(), most=0), Invalid, "most=0"),
        (lambda: replicad.own(Counter(), most="64 MB"), Invalid, "most='64 MB'"),
        (lambda: Derived({"model.*": 3}), Invalid, "not int"),
        (lambda: objects(model, derived=Derived({"model.no": list})), Invalid, "no tensor is named 'model.no'.*model.weight, model.bias"),
        (lambda: objects(model, data=replicad.moves(Counter())), Invalid, "data: replicad.moves\\(...\\) is for objects of extra="),
    ):
        with pytest.raises(err, match=text):  # type: ignore[arg-type]
            make()  # type: ignore[no-untyped-call]
    given = {"model": model, "extra": {"a": replicad.own(Counter(), most=1024)}}
    with pytest.raises(Mismatch, match=r"a: give replicad\.own"):
        Objects(given, lambda name: False, False).replaced({"extra": {"a": Counter()}})


def objects(model: Any, derived: Derived | None = None, **more: Any) -> Objects:
    return Objects({"model": model, **more}, lambda name: False, False, derived=derived)
