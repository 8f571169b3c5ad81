"""A training loop of one rank: killed at any step, it ends with the same bits as one that nothing happened to."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from conftest import Daemon

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

TRAIN = """
import hashlib, os, random, signal, sys
import numpy as np, torch
from torch import nn
import replicad

last, kill = int(sys.argv[1]), int(sys.argv[2])
where = sys.argv[3] if len(sys.argv) > 3 else "between"
torch.set_num_threads(1)
torch.manual_seed(7); random.seed(7); np.random.seed(7)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 36, 10)).to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, last)


class Sampler:
    "What says which samples come next."
    def __init__(self): self.order, self.at = list(range(64)), 0
    def next(self):
        if self.at % 16 == 0: random.shuffle(self.order)
        i, self.at = self.at % 16, self.at + 1
        return self.order[4 * i : 4 * i + 4]
    def state_dict(self): return {"order": list(self.order), "at": self.at}
    def load_state_dict(self, s): self.order, self.at = list(s["order"]), s["at"]


class Losses:
    "A user's own object."
    def __init__(self): self.sum, self.n = 0.0, 0
    def state_dict(self): return {"sum": self.sum, "n": self.n}
    def load_state_dict(self, s): self.sum, self.n = s["sum"], s["n"]


sampler, losses = Sampler(), Losses()
x, y = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
session = replicad.Session(model=model, optimizer=optimizer, scheduler=scheduler, data=sampler, extra={"losses": losses})
at = session.resume()
print("RESUMED", int(at), at.source, os.getpid(), flush=True)
fresh = at.source == "fresh"
for step in range(at + 1, last + 1):
    i = sampler.next()
    noisy = x[i] + 0.1 * torch.randn(len(i), 1, 8, 8) + np.random.rand()
    loss = nn.functional.cross_entropy(model(noisy), y[i])
    loss.backward()
    if fresh and step == kill and where == "forward":
        os.kill(os.getpid(), signal.SIGKILL)
    with session.step() as number:
        assert number == step
        optimizer.step()
        if fresh and step == kill and where == "window":
            os.kill(os.getpid(), signal.SIGKILL)
        scheduler.step()
        losses.sum, losses.n = losses.sum + loss.item(), losses.n + 1
    optimizer.zero_grad()
    if fresh and step == kill and where == "between":
        os.kill(os.getpid(), signal.SIGKILL)


def digest(*tensors):
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:16]


print("RESULT weights", digest(*model.state_dict().values()))
print("RESULT optimizer", digest(*(v for p in model.parameters() for _, v in sorted(optimizer.state[p].items()))))
print("RESULT scheduler", scheduler.last_epoch, repr(scheduler.get_last_lr()), optimizer.param_groups[0]["lr"])
print("RESULT rng", digest(torch.get_rng_state()), random.random(), np.random.rand())
print("RESULT sampler", sampler.at, sampler.order[:5], repr(losses.sum), losses.n, flush=True)
session.leave()
session.close()
"""
STEPS = 24


def result(out: str) -> list[str]:
    got = re.findall(r"^RESULT .*$", out, re.M)
    assert len(got) == 5, out
    return got


@pytest.fixture(scope="module")
def undisturbed(daemon: Daemon) -> list[str]:
    return result(daemon.run(TRAIN, str(STEPS), "0").done())


def test_two_runs_differ_when_they_should(daemon: Daemon, undisturbed: list[str]) -> None:
    assert all(a != b for a, b in zip(result(daemon.run(TRAIN, str(STEPS - 1), "0").done()), undisturbed, strict=True))


@pytest.mark.parametrize("where", [*(pytest.param(where, marks=pytest.mark.long) for where in ("between", "forward")), "window"])
def test_killed_at_a_random_step(daemon: Daemon, undisturbed: list[str], where: str, record_property: Callable[[str, object], None]) -> None:
    kill = random.randrange(1, STEPS)
    record_property("kill", kill)
    out = daemon.run(TRAIN, str(STEPS), str(kill), where, fresh=True).done()
    resumed = re.findall(r"^RESUMED (\d+) (\S+)", out, re.M)
    assert resumed[0] == ("0", "fresh"), (kill, out)
    assert len(resumed) == 2, (kill, out)
    assert int(resumed[1][0]) <= kill
    assert resumed[1][1] in ("own-ram", "fresh"), (kill, out)
    assert result(out) == undisturbed, (kill, where, out)


def test_errors_of_a_session(run: Callable[..., str]) -> None:
    out = run(
        """
        import torch, replicad
        from replicad import SessionState, Unsupported

        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def refused(text, call):
            try:
                call()
            except (SessionState, Unsupported) as err:
                assert text in str(err), err
                print("REFUSED", err)
            else:
                raise SystemExit(f"not refused: {text}")

        def step():
            with session.step():
                pass

        def nested():
            with session.step():
                step()

        refused("has no state_dict and load_state_dict", lambda: replicad.Session(model=model, extra={"x": object()}))
        refused("grows from step to step", lambda: replicad.Session(model=model, optimizer=torch.optim.LBFGS(model.parameters())))
        session = replicad.Session(model=model, optimizer=optimizer)
        refused("a session is open in this process already", lambda: replicad.Session(model=model))
        refused("a step before resume", step)
        at = session.resume()
        step()
        assert session.at == 1
        refused("steps don't nest", nested)
        assert session.resume() <= 1  # the torn step was told, the rank goes back
        step()
        session.leave()
        session.close()
        refused("closed", step)
        """
    )
    assert out.count("REFUSED") == 6
