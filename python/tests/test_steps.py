"""Loops over steps: the session owns the count, and what follows a step belongs to it."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

import torch

import replicad
from conftest import Daemon
from replicad import Invalid, SessionState
from replicad._torch.steps import Follows, Steps
from replicad.data import Loader

# A loop as people write it; the first argument says which, the second at which place and step it is killed once.
PROGRAM = """
import hashlib, os, pathlib, signal, sys
import torch, replicad
from replicad.data import Loader

how, fault = sys.argv[1:3]
mark = pathlib.Path(sys.argv[3])


def reached(place, step):
    if fault == f"{place}:{step}" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def done(step):
    "Two steps before the fault all is committed, so that it is known where the job goes on at the least."
    if fault.endswith(f":{step + 2}"):
        session.commit()


torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
x = torch.randn(64, 4)
x[::20] = float("nan") if how == "skip" else 1.0
loader = Loader(torch.utils.data.TensorDataset(x), 4, seed=1)


class Log:
    "What the loop writes down after each step."
    def __init__(self):
        self.lines = []
    def state_dict(self):
        return {"lines": list(self.lines)}
    def load_state_dict(self, state):
        self.lines = list(state["lines"])


log = Log()
held_out = Loader(torch.utils.data.TensorDataset(x), 8, seed=2)
data = {} if how in ("draws", "follow") else {"data": {"train": loader, "held_out": held_out} if how == "validation" else loader}
session = replicad.Session(model, optimizer, scheduler=scheduler, extra={"log": log}, **data)


def evaluate():
    "Draws, as dropout that stays on does."
    model.eval()
    model[2].train()
    with torch.no_grad():
        rows = next(held_out.endless())[0] if how == "validation" else x.nan_to_num()
        log.lines = (log.lines + [round(model(rows).mean().item(), 6)])[-4:]
    model.train()


def train(step, a, update=True):
    loss = model(a).square().mean()
    if not torch.isfinite(loss):
        return False
    optimizer.zero_grad()
    loss.backward()
    reached("backward", step)
    with session.step():
        model[3].bias.data.add_(torch.randn(1))  # a draw in the block
        model[1].running_mean.mul_(0.99)
        optimizer.step()
        if how == "follow" and step % 4 == 0:
            session.follow("evaluate")
        reached("block", step)
    reached("after", step)
    return True


def after(step):
    "What everybody does after a step."
    scheduler.step()
    if step % 4 == 0:
        evaluate()
        reached("evaluated", step)
    done(step)


start = session.resume()
print("START", int(start), flush=True)
if how in ("steps", "skip", "draws"):
    torch.randn(3)  # once a process: a loop over steps begins with what its step had
if how in ("steps", "skip"):
    batches = loader.endless()
    for step in session.steps(20):
        if not train(step, next(batches)[0]):
            continue
        after(step)
elif how == "draws":
    for step in session.steps(20):
        train(step, torch.randn(4, 4))
        after(step)
elif how == "mixed":
    batches = loader.endless()
    for step in range(start + 1, 11):
        train(step, next(batches)[0])
        after(step)
    for step in session.steps(20):
        train(step, next(batches)[0])
        after(step)
elif how in ("range", "validation"):
    batches = loader.endless()
    for step in range(start + 1, 21):
        train(step, next(batches)[0])
        after(step)
elif how == "top":
    batches = loader.endless()
    for step in range(start + 1, 21):
        if session.at % 4 == 0 and session.at:
            evaluate()
        train(step, next(batches)[0])
        scheduler.step()
        done(step)
elif how == "epochs":
    while loader.epoch < 2:
        for (a,) in loader:
            train(session.at + 1, a)
            if session.at == 20:
                break
            scheduler.step()
            done(session.at)
        evaluate()
        reached("evaluated", session.at)
elif how == "follow":
    torch.manual_seed(5 if start == 0 else 6)
    if start:
        session._objects.set_generators(session._loop.begins_with(first=True))  # this process drew nothing
    for step in range(start + 1, 21):
        if "evaluate" in session.due:
            evaluate()
            session.done("evaluate")
        train(step, torch.randn(4, 4))
        if "evaluate" in session.due:
            evaluate()
            reached("evaluated", step)
            session.done("evaluate")
        done(step)
session.leave()
digest = hashlib.sha256()
for t in [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]:
    digest.update(t.numpy().tobytes())
print("END", session.at, digest.hexdigest()[:16], scheduler.get_last_lr(), log.lines, torch.randint(10**9, ()).item(), flush=True)
print("NOTICED", sorted(session.noticed), flush=True)
session.close()
"""

CASES = {
    "steps": ("after:11", "evaluated:12", "backward:13"),
    "skip": ("backward:13", "evaluated:12"),
    "draws": ("block:9", "evaluated:12", "backward:14"),
    "range": ("evaluated:12", "backward:13"),
    "validation": ("backward:13",),
    "mixed": ("backward:9",),
    "top": ("backward:14",),
    "epochs": ("evaluated:16", "backward:19"),
    "follow": ("evaluated:12", "backward:14"),
}


@pytest.mark.parametrize("how", CASES)
def test_a_loop_as_people_write_it(how: str, daemon: Daemon) -> None:
    """It ends with the same bits, wherever it was killed; a kill in what follows a step has that step done again."""
    straight = daemon.run(PROGRAM, how, "none", "none").done()
    end = re.compile(r"^END .*$", re.M)
    assert "NOTICED ['iterations without a block']" in straight if how == "skip" else "NOTICED []" in straight
    for fault in CASES[how]:
        killed = daemon.run(PROGRAM, how, fault, str(daemon.dir / f"{how}-{fault}".replace(":", "-"))).done()
        assert killed.count("START") == 2, fault
        assert end.findall(straight) == end.findall(killed), fault
        started, step = int(re.findall(r"START (\d+)", killed)[1]), int(fault.partition(":")[2])
        assert step - 2 <= started < step or (fault.startswith("evaluated") and how == "follow" and started == step), (fault, started)


REFUSED = """
import torch, replicad

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
session = replicad.Session(model, optimizer)


def refused(what, call):
    try:
        call()
    except replicad.Error as err:
        print("REFUSED", what, type(err).__name__, str(err), flush=True)
    else:
        print("TAKEN", what, flush=True)


def step(follow=None):
    with session.step():
        optimizer.step()
        if follow is not None:
            session.follow(follow)


refused("early", lambda: session.steps(3))
session.resume()
for n in session.steps(4):
    if n == 1:
        refused("nested", lambda: session.steps(9))
    step()
    if n == 2:
        refused("twice", step)
    if n == 3:
        break
loop = session.steps(4)
refused("two", lambda: session.steps(4))
refused("below", lambda: session.steps(2))
refused("number", lambda: session.steps("9"))
with session.step():
    refused("inside", lambda: next(loop))
    refused("name", lambda: session.follow(""))
assert next(loop, None) is None and session.at == 4
refused("outside", lambda: session.follow("evaluate"))
step("evaluate")
assert session.due == ("evaluate",)
refused("other", lambda: session.done("save"))
refused("due", step)
session.done("evaluate")
step()
print("AT", session.at, session.due, flush=True)
session.leave()
session.close()
"""


def test_loops_that_are_refused(daemon: Daemon) -> None:
    out = daemon.run(REFUSED).done()
    refused = dict(re.findall(r"REFUSED (\w+) (.*)", out))
    assert "TAKEN" not in out
    assert "AT 6 ()" in out
    want = {
        "early": "SessionState steps before resume: call session.resume() first",
        "nested": "SessionState steps inside of a loop over session.steps()",
        "twice": "SessionState a second step in the iteration of session.steps() that is for step 2",
        "two": "SessionState steps inside of a loop over session.steps()",
        "below": "Invalid steps(2): this job is at step 3 already",
        "number": "Invalid steps('9'): want a whole number",
        "inside": "SessionState the next step of session.steps() inside of step 4",
        "name": "Invalid follow(''): want a name of 1 to 200 characters",
        "outside": "SessionState follow('evaluate') outside of a step",
        "other": "SessionState done('save') after step 5: evaluate is due",
        "due": "SessionState a step while evaluate is due, which was to follow step 5",
    }
    assert refused.keys() == want.keys()
    for what, text in want.items():
        assert refused[what].startswith(text), what


def test_a_session_that_is_off_counts_too() -> None:
    session = replicad.Session(torch.nn.Linear(2, 1), enabled=False)
    with pytest.raises(SessionState, match="resume"):
        session.steps(3)
    session.resume()
    seen = []
    for step in session.steps(5):
        seen.append(step)
        if step == 2:
            continue
        with session.step() as at:
            assert at == step
            session.follow("save")
        assert session.due == ("save",)
        session.done("save")
    assert (seen, session.at) == ([1, 2, 3, 4, 5], 5)
    with pytest.raises(Invalid, match="is at step 5 already"):
        session.steps(4)


def test_an_iterator_ends_once() -> None:
    steps = Steps(2, lambda loop: loop.step + 1)
    assert list(steps) == [1, 2]
    assert next(steps, None) is None
    steps = Steps(2, lambda loop: loop.step + 1)
    next(steps)
    steps.close()
    assert next(steps, None) is None


def test_what_follows_is_due_until_it_is_done() -> None:
    follows = Follows()
    follows.add("evaluate")
    follows.add("evaluate")
    follows.check(1)  # of the step before
    follows.ended()
    with pytest.raises(SessionState, match="is due"):
        follows.check(2)
    follows.done("evaluate", 2)
    follows.check(2)
    follows.ended()
    assert not follows.due
    for name in ("", "x" * 201, 3):
        with pytest.raises(Invalid):
            follows.add(name)  # type: ignore[arg-type]


def test_a_loader_says_when_it_is_asked() -> None:
    loader = Loader(torch.arange(8), 2, rank=0, world=1, shuffle=False)
    asked = []
    handle = loader.before_a_batch(lambda of: asked.append((of.epoch, of.used)))
    for _ in loader:
        pass
    assert asked == [(0, 0), (0, 1), (0, 2), (0, 3)]  # not where the epoch ends: what follows it is the last step's
    batches = loader.endless()
    next(batches)
    assert asked[4:] == [(1, 0)]
    handle.remove()
    next(batches)
    assert len(asked) == 5
