"""What modules, datasets and callbacks carry in plain attributes is kept, or named; what a forward writes before it reads is neither."""

from __future__ import annotations

import collections
import functools
import multiprocessing
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from conftest import Daemon
from replicad._core import capsule
from replicad._torch import attributes, implicit, marked
from replicad._torch.objects import Objects
from replicad.adapters.accelerate import Micro
from replicad.data import Loader


def session(m: Any, **more: Any) -> Objects:
    return Objects({"model": m, **more}, lambda name: False, True)


class Carried(nn.Module):
    """A recurrent state that is carried from step to step."""

    def __init__(self, none: bool = False) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.hidden: Any = None if none else torch.zeros(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x, self.hidden)
        self.hidden = h.detach()
        return h.sum()


class OneLine(Carried):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, self.hidden = self.both(x, self.hidden)
        return out

    def both(self, x: torch.Tensor, h: Any) -> Any:
        h = self.cell(x, h)
        return h.sum(), h.detach()


class Sums(nn.Module):
    """Sums of a metric, in place and anew; its mean is read at the epoch's end."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.total, self.n, self.best = torch.zeros(()), 0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x[:, :4]).sum()
        self.total += y.detach()
        self.n += len(x)
        return y

    def mean(self) -> float:
        value = float(self.total) / max(self.n, 1)
        if self.best is None or value < self.best:
            self.best = value
        return self.best


class Many(nn.Module):
    """Every kind of thing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.outputs: list[Any] = []
        self.window: collections.deque[float] = collections.deque(maxlen=4)
        self.counts: dict[Any, Any] = {}
        self.seen: set[int] = set()
        self.array = np.zeros(3)
        self.rng = np.random.default_rng(3)
        self.tau, self.late = 2.0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x[:, :4]).sum()
        noise = self.rng.standard_normal()
        self.outputs.append(y)
        self.window.append(float(noise))
        self.counts[len(self.outputs)] = self.counts.get(len(self.outputs) - 1, 0) + 1
        self.seen.add(len(self.seen))
        self.array[len(self.outputs) % 3] += noise
        self.tau = self.tau * 0.9 + sum(self.window)
        self.late = torch.tensor([noise]) if self.late is None else self.late + 1
        return y * self.tau + torch.stack(self.outputs).detach().mean() + float(self.array.sum()) + len(self.seen) + len(self.counts)


def x(step: int) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(step))


def life(make: Callable[[], Any], use: Callable[[Any, int], Any], steps: int, at: int, **more: Callable[[], Any]) -> tuple[list[Any], list[Any], dict[str, str], dict[str, Any]]:
    """What an undisturbed run gives, what a process gives that begins with the copy of a step, what is named, and what is kept."""
    torch.manual_seed(1)
    whole, m, said, kept = [], make(), {}, {}
    of = session(m)
    of.implicit.set({})
    for step in range(1, steps + 1):
        whole.append(use(m, step))
        said.update(of.implicit.look())
        if step == at:
            kept = capsule.unpack(capsule.pack(of.implicit.own(), "own"))
        else:
            of.implicit.own()
    torch.manual_seed(1)
    m = make()
    again = session(m)
    again.implicit.set(kept)
    return whole[at:], [use(m, step) for step in range(at + 1, steps + 1)], said, kept


def forward(m: Any, step: int) -> Any:
    return m(x(step)).item()


@pytest.mark.parametrize("at", [1, 2, 7])
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Carried, {"hidden"}),
        (functools.partial(Carried, none=True), {"hidden"}),
        (OneLine, {"hidden"}),
        (Many, {"outputs", "window", "counts", "seen", "array", "rng", "tau", "late"}),
    ],
)
def test_what_a_module_carries(make: Callable[[], Any], names: set[str], at: int) -> None:
    want, got, said, kept = life(make, forward, 12, at)
    assert got == want
    assert said == {}
    assert set(kept) == {f"model.{n}" for n in names}


@pytest.mark.parametrize("at", [1, 4, 5])
def test_the_sums_of_an_epoch(at: int) -> None:
    def use(m: Any, step: int) -> Any:
        m(x(step))
        out = (m.mean(), m.n)
        if step % 5 == 0:
            m.total.zero_()
            m.n = 0
        return out

    want, got, said, kept = life(Sums, use, 12, at)
    assert (got, said) == (want, {})
    assert {"model.best"} <= set(kept) <= {"model.total", "model.n", "model.best"}


def test_what_a_loop_keeps_on_a_module() -> None:
    """The class says nothing of it: the loop counts, and another branch of it sets the number anew."""

    def use(m: Any, step: int) -> Any:
        if step == 100:
            m.tau = 1.0
        m.tau *= 0.9
        return m.tau if step % 2 else m(x(step)).item()

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.tau = nn.Linear(4, 1), 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).sum() / self.tau

    want, got, said, kept = life(Plain, use, 12, 5)
    assert (got, said, set(kept)) == (want, {}, {"model.tau"})
    want, got, said, kept = life(lambda: nn.Dropout(0.5), lambda m, step: setattr(m, "p", m.p * 0.9) or m.p, 5, 3)
    assert (got, set(kept)) == (want, {"model.p"})


def test_what_goes_back_in_the_process() -> None:
    """Back to a step before it had moved, and to one behind it, with the objects that there are."""
    torch.manual_seed(1)
    m = Many()
    of = session(m)
    states, outs = [of.implicit.own()], []
    outputs = m.outputs
    for step in range(1, 6):
        outs.append(forward(m, step))
        states.append(capsule.unpack(capsule.pack(of.implicit.own(), "own")))
    for at in (3, 0, 4, 1):
        of.implicit.set(states[at])
        assert m.outputs is outputs, "who else holds it has it too"
        assert [forward(m, step) for step in range(at + 1, 6)] == outs[at:], at


# -- controls -----------------------------------------------------------------------------------------------------------


class Rotary(nn.Module):
    """A table that reaches as far as the longest input, and how far that is; a mask; what a forward leaves behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.longest, self.mask, self.last, self.features = nn.Linear(4, 1), 0, None, None, None
        self.scratch = torch.zeros(64)
        self.register_buffer("table", torch.zeros(0), persistent=False)

    def extend(self, n: int) -> None:
        self.longest = n
        self.register_buffer("table", torch.arange(float(n)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = 1000 + 100 * len(x)
        if n > self.longest:
            self.extend(n)
        if self.mask is None or len(self.mask) != n:
            self.mask = torch.ones(n, n).tril()
        self.features = self.layer(x).expand(-1, 8192).contiguous()
        self.scratch.zero_()
        self.scratch[: len(x)] += x[:, 0]
        self.last = self.features.sum()
        return self.last + self.table[: len(x)].sum() + self.scratch.sum() + self.mask[0].sum()

    def report(self) -> float:
        return self.features.mean().item()


def varied(m: Any, step: int) -> Any:
    out = m(x(step)[: 1 + step % 3]).item()
    return out, m.report()


def test_what_each_forward_makes_is_neither_kept_nor_named() -> None:
    want, got, said, kept = life(Rotary, varied, 40, 20)
    assert (got, said) == (want, {})
    assert set(kept) == set(), "a length without its table is worse than none"


def test_norms_and_metrics() -> None:
    import torchmetrics

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.dropout, self.lstm = nn.BatchNorm1d(4), nn.Dropout(), nn.LSTM(4, 4)
            self.accuracy = torchmetrics.MeanMetric()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.lstm(self.norm(x))[0].sum()
            self.accuracy(y.detach())
            return y

    torch.manual_seed(1)
    m = Net()
    of = session(m)
    for step in range(1, 30):
        m(x(step))
        assert of.implicit.look() == []
        kept = of.implicit.own()
    assert all(n.startswith("model.accuracy.") for n in kept), set(kept)
    want = float(m.accuracy.compute())
    m = Net()
    of = session(m)
    of.implicit.set(capsule.unpack(capsule.pack(kept, "own")))
    assert float(m.accuracy.compute()) == want


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden, self.losses = nn.Linear(4, 1), torch.zeros(1 << 15), []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.hidden + 1
        self.hidden = h.detach()
        self.losses.extend([float(len(self.losses))] * 1000)
        return self.layer(x).sum() + h.sum()


def test_what_is_too_large_is_named() -> None:
    *_, said, kept = life(Large, forward, 20, 20)
    assert set(said) == {"model.hidden", "model.losses"}
    assert set(kept) == set()
    assert said["model.hidden"].startswith("model.hidden changes as training goes on, its class reads it as it was left, and it is in no copy, as it takes more than 64 KiB")
    *_, said, kept = life(Large, forward, 20, 5)
    assert set(kept) == {"model.losses"}, "as long as it is short"


class Lots(nn.Module):
    """Many values that are small each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Carried60() for _ in range(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(layer(x) for layer in self.layers)  # type: ignore[return-value]


class Carried60(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden = nn.Linear(4, 1), torch.zeros(15 << 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = (self.hidden + 1).detach()
        return self.layer(x).sum() * self.hidden.mean()


def test_what_takes_too_much_together_is_named() -> None:
    """60 KiB each, of which 17 go into 1 MiB. The others are named, those alone, and what is kept is kept whole."""
    want, got, said, kept = life(Lots, forward, 4, 2)
    assert sum(capsule_bytes(v) for v in kept.values()) == 17 * (60 << 10) <= implicit.ALL < 18 * (60 << 10)
    assert {*said, *kept} == {f"model.layers[{i}].hidden" for i in range(20)}
    assert not said.keys() & kept.keys()
    assert all("takes more than 64 KiB, or all such values more than 1 MiB" in text for text in said.values())
    assert got != want


def capsule_bytes(kept: Any) -> int:
    return int(kept["value"][1].nbytes)


class Odd(nn.Module):
    """What nobody can keep, or keeps otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.view, self.parts = self.layer.weight.data.view(-1), [self.layer.weight, self.layer.bias]
        self.meta: Any = torch.zeros(3, device="meta")
        self.cycle: list[Any] = []
        self.cycle.append(self.cycle)
        self.proxy = Proxy()
        self.modules_too = {"layer": self.layer, "n": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.meta = torch.empty_like(self.meta)
        self.cycle.append(len(self.cycle))
        self.modules_too["n"] += 1
        with torch.no_grad():
            self.layer.weight.add_(self.view.sum())
        return self.layer(x).sum() + len(self.parts) + self.proxy.anything


class Proxy:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 1


def test_what_is_odd_does_no_harm() -> None:
    *_, said, kept = life(Odd, forward, 5, 5)
    assert set(kept) == set()
    assert set(said) == {"model.cycle"}
    assert "as it holds itself" in said["model.cycle"]


# -- what feeds a loop --------------------------------------------------------------------------------------------------


class Masks:
    def __init__(self) -> None:
        self.count, self.n, self.rng = multiprocessing.Value("i", -1), 0, random.Random(3)

    def __call__(self, batch: Any) -> Any:
        with self.count.get_lock():
            self.count.value += 1
        self.n = self.n + 1
        return torch.stack(list(batch)), self.count.value, self.n * 2, self.rng.random()


class Lazy:
    """Makes its generator with its first batch, as Hugging Face's collators do."""

    def __init__(self) -> None:
        self.generator: Any = None

    def __call__(self, batch: Any) -> Any:
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(42)
        return torch.rand(1, generator=self.generator)


class Closed:
    """A function's own variables."""

    def __init__(self) -> None:
        calls: list[int] = []

        def collate(batch: Any) -> Any:
            self.calls.append(1)
            return len(self.calls)

        self.calls, self.collate = calls, collate


@pytest.mark.parametrize("make", [Masks, Lazy, lambda: Closed().collate])
def test_collators(make: Callable[[], Any]) -> None:
    samples = list(torch.randn(8, 4))

    def begin() -> tuple[Any, Any]:
        collate = make()
        loader = Loader(samples, 2, seed=1, rank=0, world=1, collate_fn=collate)
        return session(nn.Linear(4, 1), data=loader), loader

    of, loader = begin()
    batches, kept, want = loader.endless(), {}, []
    for step in range(10):
        if step == 6:
            kept, place = capsule.unpack(capsule.pack(of.implicit.own(), "own")), loader.state_dict()
        want.append(repr(next(batches)))
        of.implicit.own()
    of, loader = begin()
    loader.load_state_dict(place)
    of.implicit.set(kept)
    batches = loader.endless()
    assert [repr(next(batches)) for _ in range(4)] == want[6:]


class Twice(Lazy):
    """Draws from a generator of its own, and from one that it makes late."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(1)

    def __call__(self, batch: Any) -> Any:
        return super().__call__(batch), self.rng.random()


def test_a_collator_in_workers_draws_the_same_after_a_restart() -> None:
    def loader() -> Loader:
        return Loader(list(torch.arange(16.0)), 2, seed=1, rank=0, world=1, num_workers=2, collate_fn=Twice())

    want = [repr(batch) for batch in loader()]
    assert len(set(want)) == 8
    for used in (1, 5):
        again = loader()
        again.load_state_dict(again.state_dict() | {"used": used})
        assert [repr(batch) for batch in again] == want[used:]


def test_what_workers_count_is_named() -> None:
    loader = Loader(list(torch.arange(64.0)), 2, seed=1, rank=0, world=1, num_workers=1, collate_fn=Masks())
    of = session(nn.Linear(4, 1), data=loader)
    batches, said = loader.endless(), {}
    for _ in range(5):
        next(batches)
        of.implicit.own()
        said.update(of.implicit.look())
    batches.close()
    assert set(said) == {"data.collate_fn.count", "data.collate_fn.n"}
    assert of.implicit.own() == {}
    assert all(text.startswith(f"{name} is counted in worker processes") for name, text in said.items())


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_torchdatas_loader_keeps_itself() -> None:
    from torchdata import stateful_dataloader as stateful

    for generator in (None, torch.Generator()):
        loader = stateful.StatefulDataLoader(range(12), batch_size=3, shuffle=True, generator=generator)
        of = session(nn.Linear(4, 1), data=loader)
        for step, _ in enumerate(b for _ in range(6) for b in loader):
            assert of.implicit.look() == [], step
            assert of.implicit.own() == {}


def test_what_is_made_once_the_loop_begins() -> None:
    """As a callback does that begins its average in a hook: what was kept of it is put back behind that."""
    m = Sums()
    of = session(m)
    m(x(1))
    m.mean()
    kept = of.implicit.own()
    m = Sums()
    of = session(m)
    of.implicit.set(kept)
    m.best, m.total = None, torch.zeros(())
    of.go_on(None)
    assert (m.best, float(m.total)) == (kept["model.best"]["value"], float(kept["model.total"]["value"][1]))
    of.implicit.look()
    m.best = None
    of.go_on(None)
    assert m.best is None, "a step is over"


def test_what_code_says() -> None:
    assert attributes.uses(Odd).state >= {"cycle", "parts"}
    assert attributes.uses(OneLine).renewed >= {"hidden"}
    assert "scratch" not in attributes.state(Rotary)
    assert implicit.ALL == 1 << 20


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=self.rng)


class Shared(nn.Module):
    """A generator that is in a list, and in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.sources = [torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)]
        self.named, self.first = {"b": self.sources[1]}, self.sources[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(torch.rand(1, generator=g) for g in (*self.sources, self.first, self.named["b"])).sum()  # type: ignore[union-attr]


def test_a_generator_that_two_have_stays_one() -> None:
    want, got, said, _ = life(Shared, forward, 6, 3)
    assert (got, said) == (want, {})


class Few:
    """What a framework has in one of its objects."""

    def __init__(self) -> None:
        self.step, self.rng = 1, torch.Generator()


def test_names_are_as_programs_write_them() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"a": nn.ModuleList([Noise()])}))
    of = session({"gan": nn.Sequential(Noise()), "net": model}, extra={"few": marked.moves(Micro(Few()))})
    for noise in (of.models["model.gan"][0], model[1]["a"][0]):
        noise(x(1))
    assert set(of.implicit.own()) == {"model.gan[0].rng", "model.net[1].a[0].rng"}, "each once"
    assert len(of.implicit.generators()) == 2
    for way, want in (("._modules['0'].rng", "[0].rng"), (".layers.10.0", ".layers[10][0]"), (".v1.x", ".v1.x"), (".x['0'].1", ".x['0'][1]")):
        assert attributes.written(way) == want


PROGRAM = """
import os, signal, sys, torch, replicad
from replicad.data import Loader

class Masks:
    def __init__(self):
        self.calls = 0
    def __call__(self, batch):
        self.calls = self.calls + 1
        return torch.stack([b[0] for b in batch]) * (self.calls % 3 + 1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = torch.nn.GRUCell(4, 8), torch.nn.Linear(8, 4)
        self.hidden = torch.zeros(2, 8)
    def forward(self, x):
        h = self.cell(x, self.hidden)
        self.hidden = h.detach()
        return self.head(h)

torch.manual_seed(1)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
loader = Loader(torch.utils.data.TensorDataset(torch.randn(64, 4)), 2, seed=1, collate_fn=Masks())
with replicad.Session(net, optimizer, data=loader) as session:
    at = session.resume()
    batches = loader.endless()
    def train(step):
        loss = net(next(batches)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 7 and at.source == "fresh" and sys.argv[2] == "kill":
            session.commit()
            os.kill(os.getpid(), signal.SIGKILL)
        with session.step():
            optimizer.step()
        print("LOSS", step, loss.item().hex(), flush=True)
    if sys.argv[1] == "steps":
        for step in session.steps(12):
            train(step)
    else:
        for step in range(at + 1, 13):
            train(step)
    print("NOTICED", session.noticed, flush=True)
"""


@pytest.mark.parametrize("loop", ["steps", "plain"])
def test_a_restart_has_it(daemon: Daemon, loop: str) -> None:
    def losses(how: str) -> dict[str, str]:
        out = daemon.run(PROGRAM, loop, how).done()
        assert re.findall(r"^NOTICED (.*)$", out, re.M)[-1] == "{}", out
        return dict(re.findall(r"^LOSS (\d+) (\S+)$", out, re.M))

    want = losses("")
    assert len(want) == 12
    assert losses("kill") == want
