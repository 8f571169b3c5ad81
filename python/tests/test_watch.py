"""State that changes when a copy of it would not see that is named; what changes in time is not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

#: What is done wrong, and the names under which it is noticed.
WRONG = {
    "nothing": set(),
    "scheduler": {"optim.groups[0].lr", "scheduler.last_epoch", "scheduler._step_count", "scheduler._last_lr[0]"},
    "validated": {"optim.groups[0].lr"},
    "rate": {"optim.groups[0].lr"},
    "average": {"average.value"},
    "draw": {"torch's CPU generator"},
    "draw-inside": set(),
    "evaluated": {"torch's CPU generator, in an evaluation", "torch's CPU generator"},
    "python": {"python's generator"},
    "named": {"the generator 'noise'"},
    "frozen": {"model.1.bias"},
    "weights": {"model.0.weight"},
    "moments": {"optim.model.0.weight.exp_avg"},
}

TRAIN = """
import json, random, sys, torch, replicad

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
model[1].bias.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

class Average:
    value = 0.0
    def state_dict(self): return {"value": self.value}
    def load_state_dict(self, s): self.value = s["value"]

average = Average()
named = torch.Generator().manual_seed(1)
replicad.rng.add("noise", named)

def train(wrong):
    model(torch.ones(2, 4)).sum().backward()
    with session.step():
        optimizer.step()
        optimizer.zero_grad()
        average.value += 1
        if wrong == "draw-inside":
            torch.randn(1)
        if wrong != "scheduler":
            scheduler.step()
    with torch.no_grad(), replicad.rng.preserved():
        torch.randn(3), random.random()  # an evaluation
        if wrong == "frozen":
            model[1].bias += 1
        if wrong == "weights":
            model[0].weight.mul_(2)
        if wrong == "moments":
            optimizer.state[model[0].weight]["exp_avg"].add_(1)
    if wrong == "scheduler":
        scheduler.step()
    if wrong == "validated":
        with torch.no_grad():
            model(torch.ones(2, 4))
    if wrong in ("rate", "validated"):
        optimizer.param_groups[0]["lr"] *= 0.5
    if wrong == "average":
        average.value = 0.0
    if wrong == "evaluated":  # each is named, whichever was first
        with torch.no_grad():
            model(torch.rand(2, 4))
        torch.rand(1)  # a batch
    if wrong == "draw":
        torch.rand(1)
    if wrong == "python":
        random.random()
    if wrong == "named":
        torch.rand(1, generator=named)

with replicad.Session(model=model, optimizer=optimizer, scheduler=scheduler, extra={"average": average}, debug=True) as session:
    session.resume()
    noticed = {}
    for wrong in sys.argv[1:]:
        train(wrong), train(wrong), train("nothing")
        noticed[wrong] = dict(session.noticed)
        session.noticed.clear()
    print("NOTICED", json.dumps(noticed))
"""


#: What is done between two steps without ``debug``, and the names under which it is noticed, by what the session is like.
BETWEEN: dict[str, dict[str, set[str]]] = {
    "plain": {
        "nothing": set(),
        "evaluates": set(),
        "accumulates": set(),
        "data": set(),  # torch does not count it: only debug sees it
        "clamps": {"model.net.linear.weight", "model.net.linear.bias"},
        "clamps-backward": {"model.net.linear.weight", "model.net.linear.bias"},
        "moments": set(),  # debug sees it
        "inner": {"model.net.two"},
    },
    "staged": {
        "offloads": set(),
        "frozen-offloads": {"model.net.frozen"},
        "clamps-offloads": {"model.net.linear.weight", "model.net.linear.bias"},
    },
    "max_norm": {"nothing": {"model.net.table.weight"}, "evaluates": {"model.net.table.weight"}},
}

WITHOUT_DEBUG = """
import copy, json, sys, torch, replicad
from torch.testing._internal.two_tensor import TwoTensor

torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self, max_norm):
        super().__init__()
        self.table, self.linear, self.norm = torch.nn.Embedding(8, 4, max_norm=max_norm), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
        self.two = torch.nn.Parameter(TwoTensor(torch.ones(4), torch.ones(4)))
        self.frozen = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        with torch.inference_mode():
            made = torch.ones(4)
        self.made = torch.nn.Parameter(made, requires_grad=False)

    def forward(self, x):
        return self.norm(self.linear(self.table(x) * self.frozen))

like = sys.argv[1]
model = Net(0.5 if like == "max_norm" else None)
average = torch.optim.swa_utils.AveragedModel(model.linear)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
scaler = torch.amp.GradScaler("cpu")
x = torch.tensor([1, 2, 3])

@torch.no_grad()
def change(how):
    if "clamps" in how:
        for p in model.linear.parameters():
            p.clamp_(-0.1, 0.1)
    if how == "moments":
        optimizer.state[model.linear.weight]["exp_avg"].mul_(0.5)
    if how == "inner":
        model.two.mul_(2)
    if how == "data":
        model.linear.weight.data.mul_(2)
    if "frozen" in how:
        model.frozen.add_(1)

def train(how):
    for _ in range(2 if how == "accumulates" else 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().pow(2).sum()
        scaler.scale(loss).backward()
    if "backward" in how:
        change(how)
    with session.step():
        change("clamps")
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        average.update_parameters(model.linear)
    if "backward" not in how:
        change(how)
    if "evaluates" in how:
        model.eval()
        with torch.no_grad():
            model(x), model.state_dict(), copy.deepcopy(model)(x)
        model.train()
    if "offloads" in how:
        with session.offload():
            pass

with replicad.Session(model={"net": model, "average": average}, optimizer=optimizer, scaler=scaler, staging=like == "staged") as session:
    session.resume()
    print("EXPLAINED", *(v.what for v in session.explain().exact))
    if session.at == 0:
        change("clamps")  # before the first step: it is in that step's copy
    noticed = {}
    for how in sys.argv[2:]:
        train(how), train(how), train("nothing")
        noticed[how] = dict(session.noticed)
        session.noticed.clear()
    print("NOTICED", json.dumps(noticed))
"""


@pytest.mark.parametrize("like", BETWEEN)
def test_what_changes_between_steps(like: str, run: Callable[..., str]) -> None:
    want = BETWEEN[like]
    out = run(WITHOUT_DEBUG, like, *want)
    noticed = json.loads(next(line for line in out.splitlines() if line.startswith("NOTICED")).removeprefix("NOTICED "))
    assert {how: set(seen) for how, seen in noticed.items()} == want
    assert ("max_norm" in next(line for line in out.splitlines() if line.startswith("EXPLAINED")).split()) == (like == "max_norm")
    for seen in noticed.values():
        assert len(set(seen.values())) <= 1, "one message speaks of all of them"
        assert all(name in text and "step" in text and ("max_norm" in text) == (like == "max_norm") for name, text in seen.items())


def test_samples_that_nobody_counts(run: Callable[..., str]) -> None:
    """An iterable dataset says how far it is, but those of a loader's workers are the ones that are iterated."""
    out = run(
        """
        import torch, replicad

        class Numbers(torch.utils.data.IterableDataset):
            at = 0
            def __iter__(self):
                while True:
                    self.at += 1
                    yield torch.full((4,), float(self.at))
            def state_dict(self): return {"at": self.at}
            def load_state_dict(self, s): self.at = s["at"]

        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        counted, copied = Numbers(), Numbers()
        batches = iter(torch.utils.data.DataLoader(copied, num_workers=1, generator=torch.Generator()))
        with replicad.Session(model=model, optimizer=optimizer, data={"counted": counted, "copied": copied}) as session:
            session.resume()
            for _, x, y in zip(range(12), batches, counted):
                model(x + y).sum().backward()
                with session.step():
                    optimizer.step()
                    optimizer.zero_grad()
            print("NOTICED", *session.noticed)
        """
    )
    assert "NOTICED data.copied\n" in out


def test_what_is_noticed(run: Callable[..., str]) -> None:
    out = run(TRAIN, *WRONG)
    noticed = json.loads(next(line for line in out.splitlines() if line.startswith("NOTICED")).removeprefix("NOTICED "))
    assert {wrong: set(seen) for wrong, seen in noticed.items()} == WRONG
    assert all(name.partition(", ")[0] in text and "step" in text for seen in noticed.values() for name, text in seen.items())
