"""What a restart would lack is known when a session resumes, and over its whole life; what a restart has, or what is no state, is no alarm."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from replicad import rng
from replicad._torch import attributes, lacking
from replicad._torch.lacking import ROUND, Lacking, alive, missing
from replicad._torch.objects import Objects
from replicad._torch.replacing import Replacing
from replicad.data import Loader


@pytest.fixture(autouse=True)
def _without_those_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process have left objects that are alive: only those of this one count."""
    gc.collect()
    there = [x for found in alive().values() for x in found]
    old = set(map(id, there))
    monkeypatch.setattr(lacking, "alive", lambda there=there: {k: [x for x in found if id(x) not in old] for k, found in alive().items()})


def objects(**given: Any) -> Objects:
    return Objects(given, lambda name: False, True)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def sgd(m: nn.Module, *more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([*m.parameters(), *more], lr=0.1)


class Centres(nn.Module):
    """A loss with a parameter, and a buffer if it is to have one."""

    def __init__(self, buffer: bool = True) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(2))
        if buffer:
            self.register_buffer("centre", torch.zeros(4))


class Outer(nn.Module):
    """Holds a model and its loss, as trainers' modules do."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList(inner)


def at_resume(**given: Any) -> list[str]:
    return [text.partition(" (")[0] for text in Lacking(objects(**given)).at_resume()]


def test_what_is_registered_lacks_nothing() -> None:
    m = net()
    o = sgd(m)
    s = torch.optim.lr_scheduler.StepLR(o, 1)
    assert at_resume(model=m, optimizer=o, scheduler=s, data=Loader(list(range(8)), 2)) == []
    assert at_resume(model=m, optimizer=o, scheduler=s) == [], "samples may be drawn from a generator that is kept"


class Warmup:
    """A program's own scheduler around one of torch's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def state_dict(self) -> dict[str, Any]:
        return dict(self.inner.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


def test_a_scheduler_that_hangs_on_an_optimizer() -> None:
    m = net()
    o = sgd(m)
    s = torch.optim.lr_scheduler.StepLR(o, 1)
    assert at_resume(model=m, optimizer=o) == ["optim: a learning-rate scheduler hangs on it that is not registered: its count would begin anew"]
    for given in ({"scheduler": Warmup(s)}, {"extra": {"warmup": Warmup(s)}}):
        assert at_resume(model=m, optimizer=o, **given) == []


def test_no_optimizer_and_no_data_where_there_are_some() -> None:
    m = net()
    assert at_resume(model=m) == ["optimizer: no optimizer is registered: its state would begin anew"]
    loader = Loader(list(range(8)), 2)
    assert at_resume(model=m, optimizer=sgd(m)) == ["data: there is a replicad.data.Loader, and nothing says which samples come next"]
    del loader
    loader = torch.utils.data.DataLoader(list(range(8)))
    assert at_resume(model=m, optimizer=sgd(m)) == ["data: there is a torch.utils.data.dataloader.DataLoader, and nothing says which samples come next"]
    del loader


def test_a_loss_with_a_buffer() -> None:
    m, loss = net(), Centres()
    o = sgd(m, *loss.parameters())
    said = "optim: 1 of its parameters is of a Centres that is no registered module: centre of it is in no copy"
    assert at_resume(model=m, optimizer=o) == [said]
    outer = Outer(m, loss)
    assert at_resume(model=m, optimizer=o) == [said]
    del outer
    assert at_resume(model={"model": m, "loss": loss}, optimizer=o) == []
    plain, bare = Centres(buffer=False), nn.Parameter(torch.zeros(1))
    assert at_resume(model=m, optimizer=sgd(m, *plain.parameters(), bare)) == [], "what is kept by its place lacks nothing"


class Noise:
    """Draws; it keeps its generator, or does not."""

    def __init__(self, generator: Any, keeps: bool) -> None:
        self.rng, self.keeps = generator, keeps

    def state_dict(self) -> dict[str, Any]:
        return {"rng": repr(self.rng.bit_generator.state) if self.keeps else ""}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_generators_of_objects() -> None:
    m = net()
    given = {"model": m, "optimizer": sgd(m)}

    def kept(draw: Callable[[int], object], **more: Any) -> set[str]:
        of = objects(**given, **more)
        looks, out = Lacking(of), dict[str, str]()
        for step in range(1, 2 * ROUND):
            draw(step)
            out.update(looks.step(step))
        assert out == {}
        return set(of.own()["attributes"])

    g, t = np.random.default_rng(1), torch.Generator()
    assert kept(lambda _: g.random(), extra={"noise": Noise(g, keeps=False)}) == {"noise.rng"}
    assert kept(lambda _: None, extra={"noise": Noise(g, keeps=False)}) == set(), "it may have been drawn from when the object was made"
    m[0].draws = [random.Random(1), t]
    assert kept(lambda _: torch.rand(1, generator=t)) == {"model[0].draws[1]"}
    assert kept(lambda _: m[0].draws[0].random()) == {"model[0].draws[0]"}
    rng.add("mine", m[0].draws[0])
    try:
        assert kept(lambda _: m[0].draws[0].random()) == set()
    finally:
        rng.remove("mine")
    dataset: Any = torch.utils.data.TensorDataset(torch.zeros(8))
    dataset.rng = torch.Generator()
    assert kept(lambda _: torch.rand(1, generator=dataset.rng), data=Loader(dataset, 2)) == set(), "the loader seeds it"
    extra = {"noise": Noise(g, keeps=False)}
    assert not any("Generator" in v.reason for v in missing(objects(**given, extra=extra), alive()))


# -- attributes that change ---------------------------------------------------------------------------------------------


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tau, self.calls, self.seen, self.last, self.width, self.drop = 2.0, 0, 0, 0.0, 4, False
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1  # nobody reads it
        self.last = float(self.layer.weight.detach().sum())
        self.seen = self.seen + 1
        y = self.layer(x) / self.tau + self.last
        return y.zero_() if self.drop or self.seen % 100 == 99 else y


class Kept(Annealed):
    def get_extra_state(self) -> Any:
        return {"tau": self.tau, "seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.tau, self.seen = state["tau"], state["seen"]


def test_what_a_class_reads_as_it_was_left() -> None:
    assert attributes.state(Annealed) & {"tau", "calls", "seen", "last", "drop"} == {"tau", "seen", "drop"}
    assert "p" in attributes.state(nn.Dropout)


def carry(m: Any, step: int) -> None:
    m.tau *= 0.98


def life(m: nn.Module, change: Callable[[Any, int], None]) -> set[str]:
    """What is kept by itself after some rounds of steps, with nothing named."""
    of = objects(model=m, optimizer=sgd(net()))
    looks = Lacking(of)
    for step in range(1, 4 * ROUND):
        change(m, step)
        assert looks.step(step) == []
    return set(of.own()["attributes"])


def test_a_temperature_that_is_annealed() -> None:
    def train(m: Any, step: int) -> None:
        m(torch.ones(1, 4))
        carry(m, step)

    assert life(Annealed(), train) >= {"model.seen", "model.tau"}
    assert life(Kept(), train) == set()
    assert life(nn.Sequential(nn.Dropout()), lambda m, step: setattr(m[0], "p", 0.01 * step)) == {"model[0].p"}


# -- optimizers and loaders over the whole life -------------------------------------------------------------------------


def test_an_optimizer_that_is_never_stepped() -> None:
    def stepping(stepped: str, registered: dict[str, str]) -> dict[str, str]:
        m = net()
        both = {"of-all": sgd(m), "of-one": sgd(m[0]), "twin": sgd(m)}
        looks, out = Lacking(objects(model=m, optimizer={k: both[v] for k, v in registered.items()})), {}
        for step in range(1, 4 * ROUND):
            m(torch.ones(1, 4)).sum().backward()
            if stepped:
                if stepped in registered.values():
                    looks.stepped(both[stepped])
                both[stepped].step()
            out.update(looks.step(step))
        return out

    found = stepping("twin", {"o": "of-all"})
    assert list(found) == ["optim.o"]
    assert "SGD.step() was never called, though its parameters change" in found["optim.o"]
    assert stepping("of-all", {"o": "of-all"}) == {}
    assert stepping("of-all", {"o": "of-all", "later": "of-one"}) == {}, "it rests by design"
    assert stepping("", {"o": "of-all"}) == {}


def test_a_loader_that_rests() -> None:
    def course(use: Callable[[int], str], **loaders: Loader) -> set[str]:
        m = net()
        looks, seen = Lacking(objects(model=m, optimizer=sgd(m), data=dict(loaders))), set()
        batches = {k: lo.endless() for k, lo in loaders.items()}
        for step in range(1, 12 * ROUND):
            if name := use(step):
                next(batches[name])
            seen.update(name for name, _ in looks.step(step))
        return seen

    def loader() -> Loader:
        return Loader(list(range(64)), 2, rank=0, world=1)

    assert course(lambda step: "a", a=loader()) == set()
    assert course(lambda step: "a" if step < 50 else "", a=loader()) == {"data.a, at rest"}
    assert course(lambda step: "a" if step < 50 else "b", a=loader(), b=loader()) == set()
    assert course(lambda step: "a" if step % 40 == 0 else "", a=loader()) == set(), "a batch serves many steps"


PROGRAM = """
import json, logging, sys, torch, replicad
from replicad.data import Loader

said = []
class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("replicad").addHandler(Said())

torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
small, large, held_out = Loader(data, 2, seed=1), Loader(data, 4, seed=2), Loader(data, 8, shuffle=False)
how = sys.argv[1]
if how == "scheduler":
    torch.optim.lr_scheduler.StepLR(optimizer, 5)
kept = {"small": small, "large": large} if how == "both" else small
with replicad.Session(model, optimizer, data=kept) as session:
    session.resume()
    a, b = small.endless(), large.endless()
    for step in range(1, 31):
        (x,) = next(a if step <= 15 or how == "scheduler" else b)
        model(x).square().mean().backward()
        with session.step():
            optimizer.step()
            optimizer.zero_grad()
        if step % 7 == 0:
            model.eval()
            for (x,) in held_out:
                model(x)
            model.train()
            with torch.no_grad():
                next(iter(held_out))
    print("SAID", json.dumps([said, session.noticed]))
"""


@pytest.mark.parametrize(
    ("how", "line", "noticed"),
    [
        ("both", "", ""),
        (
            "small",
            "",
            "large gives batches to this training, and is not in the session's data=: a restart would begin it anew; "
            'give all that take turns: data={"small": small, "large": large}',
        ),
        ("scheduler", "replicad: a restart would lack: optim: a learning-rate scheduler hangs on it that is not registered: its count would begin anew (pass scheduler=)", ""),
    ],
)
def test_what_is_said_in_a_job(run: Callable[..., str], how: str, line: str, noticed: str) -> None:
    out = run(PROGRAM, how)
    said, seen = json.loads(next(x for x in out.splitlines() if x.startswith("SAID ")).removeprefix("SAID "))
    lacks = [x for x in said if "would lack" in x]
    assert lacks == ([f"{line}: session.explain() says more"] if line else [])
    assert list(seen.values()) == ([noticed] if noticed else []), seen


def test_a_scheduler_of_what_is_put_around_an_optimizer_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """As accelerate's is, which gives the optimizer's groups: its rates are compared by what they began with, and nothing hangs on the optimizer unregistered."""
    from accelerate import Accelerator
    from transformers import get_scheduler

    m = net()
    around = Accelerator(cpu=True).prepare_optimizer(sgd(m))
    warm = get_scheduler("cosine", around, num_warmup_steps=2, num_training_steps=8)
    of = objects(model=m, optimizer=around, scheduler=warm)
    (o,) = of.optimizers.values()
    assert o is not warm.optimizer
    assert Lacking(of).scheduled(o)
    assert not Lacking(objects(model=m, optimizer=around)).scheduled(o)
    replacing = Replacing()
    replacing.asks(of, ())
    o.param_groups[0]["lr"] = 0.07  # as of a job that is further in its schedule
    replacing.say(of, Lacking(of).scheduled, 0, True, ())
    assert not caplog.records
