"""Optimizer state that is made beforehand, and tensors of every kind as regions."""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from replicad import Unsupported
from replicad._torch import optimizers
from replicad._torch.objects import Objects
from replicad._torch.optimizers import unwrapped
from replicad._torch.state import Leaf, materialise, model_leaves, optimizer_leaves, optimizer_values, regions, set_optimizer_values
from replicad._torch.tensors import dense

Make = Callable[[Iterable[Any]], optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "AdamW amsgrad maximize": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True, maximize=True),
    "AdamW capturable lr": lambda p: optim.AdamW(p, lr=torch.tensor(0.01)),
    "AdamW decay tensor": lambda p: optim.AdamW(p, lr=0.01, weight_decay=torch.tensor(0.1)),
    "Adam decay": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1),
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD momentum decay": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.3, weight_decay=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01),
    "RMSprop centered": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, weight_decay=0.1),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "NAdam decay": lambda p: optim.NAdam(p, lr=0.01, weight_decay=0.1),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01, weight_decay=0.1),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01, weight_decay=0.1),
    "ASGD": lambda p: optim.ASGD(p, lr=0.01, weight_decay=0.1, t0=3),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "Adadelta": lambda p: optim.Adadelta(p, weight_decay=0.1),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.01),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))  # ReLU: gradients of zero, of either sign


def bits(t: torch.Tensor) -> bytes:
    return bytes(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def flat(v: Any) -> Any:
    return (str(v.dtype), tuple(v.shape), bits(v)) if isinstance(v, torch.Tensor) else v


def train(make: Make, beforehand: bool, steps: int = 6, zero: bool = False) -> tuple[list[Any], dict[int, dict[str, Any]]]:
    model = net()
    params = list(model.parameters())
    optimizer = make(params)
    if beforehand:
        materialise(optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 5)).pow(2).sum() * (-0.0 if zero else 1.0)
        loss.backward()
        optimizer.step()
    return [flat(p) for p in params], {i: {k: flat(v) for k, v in optimizer.state.get(p, {}).items()} for i, p in enumerate(params)}


@pytest.mark.parametrize("zero", [False, True], ids=["gradients", "zero gradients"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_later_training_is_equal_to_the_bit(name: str, zero: bool) -> None:
    want, got = train(OPTIMIZERS[name], False, zero=zero), train(OPTIMIZERS[name], True, zero=zero)
    assert got[0] == want[0]
    for i, state in want[1].items():
        assert {k: got[1][i][k] for k in state} == state
    assert train(OPTIMIZERS[name], True, steps=5)[0] != train(OPTIMIZERS[name], True)[0], "the comparison can fail"


@pytest.mark.parametrize(
    "make", [lambda p: optim.Rprop(p, lr=0.01), lambda p: optim.AdamW(p, lr=0.01), lambda p: optim.SGD(p, lr=0.1, momentum=0.9)], ids=["Rprop", "AdamW", "SGD"]
)
def test_complex_parameters(make: Make) -> None:
    def trained(made: bool) -> bytes:
        p = torch.nn.Parameter(torch.view_as_complex(torch.arange(8.0).reshape(4, 2)))
        optimizer = make([p])
        if made:
            materialise(optimizer)
        for step in range(4):
            p.grad = torch.view_as_complex(torch.linspace(-1, step, 8).reshape(4, 2))
            optimizer.step()
        return bits(torch.view_as_real(p.detach()))

    assert trained(True) == trained(False)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torchs_own_are_known(name: str, caplog: pytest.LogCaptureFixture) -> None:
    materialise(OPTIMIZERS[name](list(net().parameters())))
    assert caplog.text == ""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torchs_own_take_no_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would touch all parameters and as many gradients: a replacement has its state in a third of the time without."""
    monkeypatch.setattr(optimizers, "_make", None)
    optimizer = OPTIMIZERS[name](list(net().parameters()))
    materialise(optimizer)
    assert len(optimizer.state) == (0 if name == "SGD" else 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"maximize": True}, {"weight_decay": 0.1}, {"foreach": True}, {"fused": True}], ids=str)
def test_sgds_momentum_is_what_a_step_makes(options: dict[str, Any], dtype: torch.dtype) -> None:
    """To the bit, and where it lies."""
    if "fused" in options and dtype.is_complex:
        pytest.skip("torch has no such step")

    def parameters() -> list[nn.Parameter]:
        shapes = [torch.ones(2, 3, 4, 5, dtype=dtype), torch.ones(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last), torch.ones(4, 3, dtype=dtype).t()]
        return [nn.Parameter(t) for t in (*shapes, torch.ones((), dtype=dtype), torch.ones(1, 1, dtype=dtype), torch.ones(0, 3, dtype=dtype))]

    def made(how: Any) -> list[Any]:
        optimizer = optim.SGD(parameters(), lr=0.1, momentum=0.9, **options)
        how(optimizer, optimizers._fresh(optimizer))
        buffers = [optimizer.state[p] for p in optimizer.param_groups[0]["params"]]
        assert all(list(b) == ["momentum_buffer"] for b in buffers)
        return [(type(t), t.dtype, t.shape, t.stride(), t.requires_grad, bits(torch.view_as_real(t) if t.is_complex() else t)) for b in buffers for t in b.values()]

    assert made(optimizers._sgds) == made(optimizers._make)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_state_lies_as_its_parameter_does(layout: torch.memory_format) -> None:
    p = nn.Parameter(torch.ones(2, 3, 4, 5).to(memory_format=layout))
    optimizer = optim.Rprop([p], lr=0.1)
    materialise(optimizer)
    assert all(v.stride() == p.stride() for k, v in optimizer.state[p].items() if k != "step")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_else_changes(name: str) -> None:
    model = net()
    params = list(model.parameters())
    optimizer = OPTIMIZERS[name](params)
    params[1].grad = torch.ones_like(params[1])
    params[2].requires_grad_(False)
    before = [flat(p) for p in params], [{k: flat(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    materialise(optimizer)
    assert before == ([flat(p) for p in params], [{k: flat(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups])
    assert params[0].grad is None
    assert params[1].grad is not None
    assert torch.equal(params[1].grad, torch.ones_like(params[1]))
    kept = {k: flat(v) for k, v in optimizer.state[params[0]].items()}
    materialise(optimizer)
    assert kept == {k: flat(v) for k, v in optimizer.state[params[0]].items()}


def test_state_that_is_there_stays() -> None:
    """A parameter that was added later gets its state, the others keep theirs."""
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    optimizer = optim.AdamW([a], lr=0.1)
    a.grad = torch.tensor([1.0, 2.0, 3.0])
    optimizer.step()
    optimizer.add_param_group({"params": [b]})
    want = {k: flat(v) for k, v in optimizer.state[a].items()}, flat(a)
    materialise(optimizer)
    assert want == ({k: flat(v) for k, v in optimizer.state[a].items()}, flat(a))
    assert float(optimizer.state[b]["step"]) == 0


class Lion(optim.Optimizer):
    """An optimizer that torch doesn't know."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "weight_decay": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["step"], s["scale"], s["exp_avg"] = 0, torch.ones(()), torch.zeros_like(p)
                s["step"] += 1
                with torch.no_grad():
                    p.mul_(1 - g["lr"] * g["weight_decay"]).sub_(g["lr"] * (s["exp_avg"] * 0.9 + p.grad * 0.1).sign())
                    s["exp_avg"].mul_(0.9).add_(p.grad, alpha=0.1)


class Broken(Lion):
    """It makes state, and fails then where there is nothing to divide by."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        1.0 / float(self.param_groups[0]["params"][0].grad.sum())


def lookahead(base: Any, count: str, after: bool = False) -> Any:
    """A subclass of one of torch's optimizers with slow weights of its own, which begin as the weights, ``after`` the first step or before it."""

    class Lookahead(base):  # type: ignore[misc]
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for late in (False, True):
                if late:
                    super().step(closure)
                for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
                    state = self.state[p]
                    if late == after and "slow" not in state:
                        state |= {"slow": p.detach().clone(), count: 0}
                    if late:
                        state[count] += 1
                        if state[count] % 3 == 0:
                            p.copy_(state["slow"].lerp_(p, 0.5))

    return Lookahead


BASES: dict[str, Any] = {
    "SGD": (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "AdamW": (optim.AdamW, {"lr": 0.01}),
    "NAdam": (optim.NAdam, {"lr": 0.01}),
    "ASGD": (optim.ASGD, {"lr": 0.01, "t0": 3}),
    "Adamax": (optim.Adamax, {"lr": 0.01}),
    "Rprop": (optim.Rprop, {"lr": 0.01}),
    "Adagrad": (optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.3}),
}


def test_a_subclass_keeps_its_own_state(caplog: pytest.LogCaptureFixture) -> None:
    """It begins with what its first step would make of it: weights, not zeros."""
    kind = lookahead(optim.SGD, "step")

    def make(p: Any) -> Any:
        return kind(p, lr=0.01, momentum=0.9)

    assert train(make, False) == train(make, True)
    model = net()
    optimizer = make(model.parameters())
    materialise(optimizer)
    for p in model.parameters():
        assert torch.equal(optimizer.state[p]["slow"], p)
        assert optimizer.state[p]["step"] == 0
    assert caplog.text == ""


@pytest.mark.parametrize("name", BASES)
def test_a_subclass_with_a_step_around_torchs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    base, options = BASES[name]

    class Clipped(base):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:
            torch.nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], 1.0)
            super().step(closure)

    class Named(base):  # type: ignore[misc]
        def __init__(self, params: Any, **more: Any) -> None:
            super().__init__(params, **options)
            self.name = "mine"

    for kind in (Clipped, Named):
        assert train(lambda p, kind=kind: kind(p, **options), False) == train(lambda p, kind=kind: kind(p, **options), True)
    assert caplog.text == ""


class Averaging(optim.Optimizer):
    """Its averages begin with the first gradient."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["average"] = state["average"].mul_(0.9).add_(p.grad, alpha=0.1) if state else p.grad.clone()
            p.sub_(0.1 * state["average"])


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda p: lookahead(optim.SGD, "k")(p, lr=0.1), r"optim\.state\.param\.0\.0\.k"),
        (lambda p: lookahead(optim.SGD, "step", after=True)(p, lr=0.1), r"optim\.param\.0\.0\.slow"),
        (Averaging, r"optim\.param\.0\.0, optim\.param\.0\.0\.average"),
    ],
    ids=["counter", "first weights", "first gradient"],
)
def test_a_first_step_unlike_the_others_is_refused(make: Any, names: str) -> None:
    """By name, and with nothing touched; once the step was taken, its state is there."""
    model = net()
    optimizer = make(model.parameters())
    before = [flat(p) for p in model.parameters()]
    for _ in range(2):
        with pytest.raises(Unsupported, match=rf"its first step is unlike the others.*{names}.*count under the key 'step' or in param_groups.*take a step before"):
            materialise(optimizer)
        assert before == [flat(p) for p in model.parameters()]
        assert not optimizer.state
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    materialise(optimizer)


def test_what_cannot_be_tried_out_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Held(Lion):
        def __init__(self, params: Any) -> None:
            super().__init__(params)
            self.lock = __import__("threading").Lock()  # nobody can copy it

    materialise(Held(list(net().parameters())))
    assert "Held is none of torch's, and can't be tried out (TypeError" in caplog.text
    assert "take a step before the session is made" in caplog.text


def test_counters_that_are_attributes_begin_where_they_did(caplog: pytest.LogCaptureFixture) -> None:
    """No copy has them, which is said."""

    class Counting(optim.Adam):
        seen = 0

        def step(self, closure: Any = None) -> Any:
            self.seen += 1
            return super().step(closure)

    optimizer = Counting(net().parameters())
    materialise(optimizer)
    assert optimizer.seen == 0
    assert "Counting keeps a count in self.seen, which no copy holds" in caplog.text


@pytest.mark.parametrize(("kind", "options"), [(optim.RMSprop, {"momentum": 0.9}), (optim.RMSprop, {"momentum": 0.9, "eps": 0.0}), (optim.Adadelta, {"eps": 0.0})])
def test_nothing_is_divided_by_nothing(kind: Any, options: dict[str, Any]) -> None:
    """An eps that is zero, in float16 the default too: the state of a zero gradient is no number then."""
    dtype = torch.float32 if "eps" in options else torch.float16

    def trained(made: bool) -> list[torch.Tensor]:
        p = torch.nn.Parameter(torch.tensor([0.5, 1.5, 0.5], dtype=dtype))
        optimizer = kind([p], lr=0.01, **options)
        if made:
            materialise(optimizer)
        for gradient in (1.0, -2.0):
            p.grad = torch.full_like(p, gradient)
            optimizer.step()
        return [p.detach(), *(v for v in optimizer.state[p].values() if isinstance(v, torch.Tensor))]

    want, got = trained(False), trained(True)
    assert all(torch.isfinite(x).all() for x in want)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


class Flagged(Lion):
    """Makes its state behind a flag of its own."""

    ready: Any = False

    def step(self, closure: Any = None) -> Any:
        if not self.ready:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].update(step=0, exp_avg=torch.zeros_like(p))
            self.ready = type(self).ready or True
        return super().step(closure)


def test_state_behind_a_flag_is_made_once() -> None:
    model = net()
    optimizer = Flagged(list(model.parameters()))
    materialise(optimizer)
    made = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    assert all(a is optimizer.state[p]["exp_avg"] for a, p in zip(made, model.parameters(), strict=True))


def test_objects_in_attributes_are_no_difference(caplog: pytest.LogCaptureFixture) -> None:
    """They are unlike their own copies; a counter in a list is told by its name."""

    class Holder:
        pass

    class Holding(Lion):
        def __init__(self, params: Any) -> None:
            super().__init__(params)
            self.handles = [Holder()]

    materialise(Holding(list(net().parameters())))
    assert caplog.text == ""

    class Counted(Lion):
        def __init__(self, params: Any) -> None:
            super().__init__(params)
            self.counts = [0]

        def step(self, closure: Any = None) -> None:
            self.counts[0] += 1
            super().step(closure)

    with pytest.raises(Unsupported, match=r"its first step is unlike the others.*: self\.counts\[0\] would differ"):
        materialise(Counted(list(net().parameters())))


def test_what_is_not_to_be_copied_is_not_tried_out(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []

    class Native(Lion):
        def __del__(self) -> None:
            freed.append(1)

    native = Native(list(net().parameters()))
    materialise(native)
    assert freed == []
    assert "Native is none of torch's, and can't be tried out (TypeError: it has a destructor" in caplog.text

    class Holding(Lion):
        def __init__(self, params: Any) -> None:
            super().__init__(params)
            self.held = {"model": torch.nn.Linear(1024, 1024)}

    monkeypatch.setattr("replicad._torch.optimizers.MOST_COPIED", 1 << 20)
    materialise(Holding(list(net().parameters())))
    assert "Holding is none of torch's, and can't be tried out (MemoryError: its attributes hold 4 MiB of tensors" in caplog.text


def sized(least: int) -> Any:
    """An optimizer that keeps 8-bit averages of tensors of so many elements and more, which begin with their first gradient; plain ones of others."""

    class Sized(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
                state = self.state[p]
                if p.numel() < least:
                    state.setdefault("average", torch.zeros_like(p)).mul_(0.9).add_(p.grad)
                elif not state:
                    state |= {"small": p.grad.clamp(-1, 1).mul(127).to(torch.int8), "scale": torch.ones(())}
                else:
                    state["small"].copy_((state["small"] * 0.9 + p.grad * 12.7).clamp(-127, 127))
                p.sub_(0.1 * (state["average"] if "average" in state else state["small"] / 127.0))

    return Sized


def test_it_is_tried_out_at_the_size_that_it_has() -> None:
    """On an 8 by 8 corner of each the two kinds of state are one."""
    for make, shapes in ((sized(4096), [(64, 64), (3,), (3,)]), (sized(65), [(5, 13)])):
        params = [nn.Parameter(torch.ones(shape)) for shape in shapes]
        optimizer = make(params)
        with pytest.raises(Unsupported, match=r"Sized: its first step is unlike the others.*optim\.param\.0\.0\.small"):
            materialise(optimizer)
        assert not optimizer.state
    materialise(sized(4097)([nn.Parameter(torch.ones(64, 64))]))


class Peak(TorchDispatchMode):
    """The most bytes that tensors take at a time which were made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = f(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and (storage := t.untyped_storage())._cdata not in given:
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.freed, storage.nbytes())
        return out

    def freed(self, nbytes: int) -> None:
        self.now -= nbytes


#: Bytes of each of many parameters.
EACH = 64 << 10


def many(n: int = 32) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(EACH // 4 // 64, 64)) for _ in range(n)]


class AllAtOnce(Lion):
    """It wants the gradients of all."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert all(p.grad is not None for g in self.param_groups for p in g["params"])
        super().step(closure)


class OneCount(Lion):
    """It counts in a state of its own, so that what is made after others is another."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        count = self.state.setdefault("count", {"step": 0})
        count["step"] += 1
        super().step(closure)
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            self.state[p].setdefault("begun", torch.full((), count["step"]))


@pytest.mark.parametrize(
    ("make", "state", "most"),
    [
        (OPTIMIZERS["SGD"], 0, 0),
        (OPTIMIZERS["SGD momentum"], 1, 0),
        (OPTIMIZERS["AdamW"], 2, 0),
        (Lion, 1, 12),  # of four parameters at a time: copies, gradients, what a step has besides
        (AllAtOnce, 1, 70),  # copies and gradients of all
    ],
    ids=["SGD", "SGD momentum", "AdamW", "Lion", "AllAtOnce"],
)
def test_what_making_state_takes_beside_it(make: Make, state: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parameters, of which there are 32."""
    monkeypatch.setattr(optimizers, "AT_ONCE", 4 * EACH)
    monkeypatch.setattr(optimizers, "MOST_TRIED", 0)
    monkeypatch.setattr(optimizers, "lies_on", lambda t: True)  # where no fourth of all is tried
    monkeypatch.setattr(optimizers, "LARGE", 64)
    params = many()
    before = [bits(p) for p in params]
    optimizer = make(params)
    with Peak() as peak:
        materialise(optimizer)
    made = sum(t.numel() * t.element_size() for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor))
    assert made // EACH == state * len(params)
    assert peak.most - made <= (most + 1) * EACH
    assert before == [bits(p) for p in params]


@pytest.mark.parametrize("make", [Lion, AllAtOnce, lookahead(optim.SGD, "step")], ids=lambda kind: kind.__name__)
def test_state_that_is_made_for_some_at_a_time_is_the_same(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"lr": 0.1, "momentum": 0.9} if issubclass(make, optim.SGD) else {}

    def made(at_once: int) -> list[Any]:
        monkeypatch.setattr(optimizers, "AT_ONCE", at_once)
        params = many(5)
        optimizer = make(params, **options)
        materialise(optimizer)
        return [[flat(p), {k: flat(v) for k, v in optimizer.state[p].items()}] for p in params]

    assert made(EACH) == made(1 << 30)


def test_an_optimizer_that_tells_the_first_from_later_ones_makes_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "AT_ONCE", EACH)
    params = many(3)
    optimizer = OneCount(params)
    with pytest.raises(Unsupported, match=r"OneCount: its first step is unlike the others"):  # its count is
        materialise(optimizer)
    assert not optimizer.state and optimizers._compared(optimizer, None).unlike != optimizers._compared(optimizer, 0).unlike


@pytest.mark.parametrize("at_once", [EACH, 1 << 30])
@pytest.mark.parametrize("make", [Lion, OPTIMIZERS["SGD momentum"], OPTIMIZERS["AdamW"]], ids=["Lion", "SGD", "AdamW"])
def test_out_of_memory_is_refused_and_nothing_is_half_made(make: Any, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "AT_ONCE", at_once)
    monkeypatch.setattr(optimizers, "_try_out", lambda *_: (None, True))
    params = many(6)
    before, left = [bits(p) for p in params], [4]
    real = torch.zeros_like

    def zeros_like(t: torch.Tensor, **more: Any) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(t, **more)

    optimizer = make(params)
    monkeypatch.setattr(torch, "zeros_like", zeros_like)
    with pytest.raises(Unsupported, match=r"its state can't be made .*\(OutOfMemoryError: CUDA out of memory.*take a step before the session is made") as err:
        materialise(optimizer)
    assert not optimizer.state and before == [bits(p) for p in params] and all(p.grad is None for p in params)
    monkeypatch.undo()
    del err
    materialise(optimizer)
    assert len(optimizer.state) == len(params)


def test_what_is_too_large_to_be_tried_out_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller one that stands for it is as large as there is room for; where the state shows that it is of another kind, it is refused."""
    monkeypatch.setattr(optimizers, "MOST_TRIED", 100 << 10)
    monkeypatch.setattr(optimizers, "LARGE", 4096)
    params = [nn.Parameter(torch.ones(shape)) for shape in ((300, 70), (300, 70), (10,))]
    with pytest.raises(Unsupported, match=r"Sized: its first step is unlike the others"):
        materialise(sized(2000)(params))  # 37 by 70 elements stand for it
    params.append(nn.Parameter(torch.ones(600, 70)))
    optimizer = sized(22000)(params)
    with pytest.raises(
        Unsupported, match=r"shape \(600, 70\) otherwise than the one of shape \(\d+, \d+\).*small \(int8\).*average \(float32\).*take a step before the session is made"
    ):
        materialise(optimizer)
    assert not optimizer.state
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    materialise(optimizer)  # the remedy
    assert caplog.text == ""
    materialise(sized(1 << 20)(params))
    assert re.search(r"Sized is none of torch's, and was tried out on smaller tensors than it has: \(\d+, \d+\) for a parameter of shape \(600, 70\);", caplog.text)


def test_a_shard_is_not_tried_out_as_large_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for a fourth of what this rank has."""

    class Sharded(nn.Parameter):
        pass

    monkeypatch.setattr(optimizers, "MOST_TRIED", 0)
    monkeypatch.setattr(optimizers, "LARGE", 100)
    whole = Sharded(torch.ones(100, 10))
    plain: dict[str, Any] = {}
    assert optimizers._tried([(plain, whole), (plain, nn.Parameter(torch.ones(3000)))])[0][id(whole)] == (100, 10)
    whole._local_tensor = torch.ones(25, 10)
    assert optimizers._tried([(plain, whole)])[0][id(whole)] == (6, 10)


def test_tensors_in_attributes_are_said(caplog: pytest.LogCaptureFixture) -> None:
    class Holding(Lion):
        def __init__(self, params: Any, anew: bool) -> None:
            super().__init__(params)
            self.anew, self.still, self.norms = anew, torch.ones(3), [torch.zeros(())]
            self.watched = self.param_groups[0]["params"]

        def step(self, closure: Any = None) -> None:
            super().step(closure)
            self.norms[0] = self.norms[0] + 1 if self.anew else self.norms[0].add_(1)

    for anew in (False, True):
        caplog.clear()
        with pytest.raises(Unsupported, match=r"self\.norms"):
            materialise(Holding(net().parameters(), anew))

    class Inside(Lion):
        def __init__(self, params: Any) -> None:
            super().__init__(params)
            self.clip = type("Clip", (), {})()
            self.clip.norm = torch.zeros(())

        def step(self, closure: Any = None) -> None:
            super().step(closure)
            self.clip.norm += 1

    materialise(Inside(net().parameters()))
    assert "a step of Inside changes tensors in self.clip, which no copy holds" in caplog.text


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_elements(name: str) -> None:
    """It has state as torch makes it, and gets gradients."""

    def trained(made: bool) -> list[Any]:
        params = [nn.Parameter(torch.ones(4, 0)), nn.Parameter(torch.ones(3))]
        optimizer = OPTIMIZERS[name](params)
        if made:
            materialise(optimizer)
        for step in range(3):
            for p in params[name == "Adafactor" :]:  # which divides by the number of elements
                p.grad = torch.full_like(p, step - 1.5)
            optimizer.step()
        return [{k: flat(v) for k, v in optimizer.state.get(p, {}).items()} for p in params]

    want, got = trained(False), trained(True)
    assert got[1] == want[1]
    assert got[0] == want[0] or name == "Adafactor"


def test_an_optimizer_that_fails_without_elements(caplog: pytest.LogCaptureFixture) -> None:
    """It trains as it does without a session, where the parameter gets no gradient."""

    class Mean(Lion):
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                1 / (p.numel() if p.grad is not None else 1)
            super().step(closure)

    optimizer = Mean([nn.Parameter(torch.ones(4, 0)), nn.Parameter(torch.ones(3))])
    materialise(optimizer)
    assert [p.numel() for p in optimizer.state] == [3]
    assert caplog.text == ""


def test_a_scheduler_is_around_the_step(caplog: pytest.LogCaptureFixture) -> None:
    """It counts the steps of the program, of which this is none."""
    optimizer = optim.SGD(net().parameters(), lr=0.1, momentum=0.9)
    optim.lr_scheduler.StepLR(optimizer, 1)
    materialise(optimizer)
    assert not getattr(optimizer, "_opt_called", False)
    assert caplog.text == ""


def test_optimizers_of_others(caplog: pytest.LogCaptureFixture) -> None:
    want, got = train(Lion, False), train(Lion, True)
    assert want == got
    assert caplog.text == ""


def test_sparse_gradients() -> None:
    def trained(made: bool) -> bytes:
        torch.manual_seed(0)
        words = nn.Embedding(9, 4, sparse=True)
        optimizer = optim.SparseAdam(words.parameters(), lr=0.1)
        if made:
            materialise(optimizer)
            assert optimizer.state[words.weight]["step"] == 0
        for step in range(4):
            optimizer.zero_grad()
            words(torch.tensor([step, 2 * step, step])).pow(2).sum().backward()
            optimizer.step()
        return bits(words.weight)

    assert trained(True) == trained(False)


class Wrapping(optim.Optimizer):
    """As accelerate's AcceleratedOptimizer: one of torch's optimizers by its class, which has all from the one inside."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)  # type: ignore[assignment]
    param_groups = property(lambda self: self.optimizer.param_groups)  # type: ignore[assignment]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


class Opaque(Wrapping):
    """It shows its groups as others than they are."""

    param_groups = property(lambda self: [dict(g) for g in self.optimizer.param_groups])  # type: ignore[assignment]


def test_wrappers_around_an_optimizer() -> None:
    inner = optim.AdamW(net().parameters())
    assert unwrapped(Wrapping(Wrapping(inner))) is inner
    with pytest.raises(Unsupported, match=r"Opaque: not made by torch\.optim\.Optimizer\.__init__.*give the torch\.optim\.Optimizer inside of it \(its \.optimizer, say\)"):
        unwrapped(Opaque(inner))


class Slow(optim.Optimizer):
    """Slow weights of its own around an optimizer that has the moments, as pytorch_optimizer's Lookahead."""

    def __init__(self, inside: Any) -> None:
        super().__init__([p for o in inside for g in o.param_groups for p in g["params"]], {})
        self.inside = inside[0] if len(inside) == 1 else inside
        for p in (p for g in self.param_groups for p in g["params"]):
            self.state[p]["slow"] = p.detach().clone()


@pytest.mark.parametrize("several", [False, True])
def test_an_optimizer_inside_another_is_kept_or_refused(several: bool) -> None:
    model = net()
    inside = [optim.AdamW(p) for p in ([[q] for q in model.parameters()] if several else [list(model.parameters())])]
    outer = Slow(inside)
    with pytest.raises(Unsupported, match=r"optim: Slow steps the AdamW in its \.inside, whose state would be in no copy: give both, this one first"):
        Objects({"model": model, "optimizer": outer}, lambda name: False, True)
    names = [x.name for x in Objects({"model": model, "optimizer": [outer, *inside]}, lambda name: False, True).leaves]
    assert sum(n.endswith(".exp_avg") for n in names) == sum(n.endswith(".slow") for n in names) == 4


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: optim.LBFGS(p), "LBFGS: its history is a list of tensors that grows"),
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), "SGD with dampening: .*take a step before the session is made"),
        (lambda p: Broken(p), r"Broken: its state can't be made by a step with zero gradients \(ZeroDivisionError: .*take a step before"),
    ],
    ids=["LBFGS", "dampening", "broken"],
)
def test_what_is_refused(make: Make, text: str) -> None:
    params = list(net().parameters())
    before = [flat(p) for p in params]
    optimizer = make(params)
    for _ in range(2):  # what it left half made is not taken for state
        with pytest.raises(Unsupported, match=text):
            materialise(optimizer)
    assert before == [flat(p) for p in params]
    assert all(p.grad is None for p in params)


def test_values_round_trip() -> None:
    model = net()
    names = {id(p): k for k, p in model.named_parameters()}
    w, b, *others = model.parameters()
    groups: list[dict[str, Any]] = [{"params": [w, b], "lr": 0.5}, {"params": others}]
    first = optim.AdamW(groups, betas=(0.8, 0.9))
    values = optimizer_values(first, names)
    second = optim.AdamW([{"params": [w, b]}, {"params": others}])
    set_optimizer_values(second, names, values)
    assert optimizer_values(second, names) == values
    assert second.param_groups[0]["lr"] == 0.5
    assert second.param_groups[0]["betas"] == (0.8, 0.9)


def leaf(t: torch.Tensor, name: str = "t") -> Leaf:
    return Leaf(name, t, "window")


def content(t: torch.Tensor) -> bytes:
    (r,) = regions([leaf(t)])
    return ctypes.string_at(r.address, r.nbytes)


def test_tied_weights_are_one_region() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 4)
            self.head = nn.Linear(4, 11, bias=False)
            self.head.weight = self.embed.weight

    model = Tied()
    names = {id(p): f"model.{k}" for k, p in model.named_parameters()}
    optimizer = optim.AdamW(model.parameters())
    materialise(optimizer)
    got = [r.name for r in regions([*model_leaves("model", model, lambda _: False), *optimizer_leaves("optim", optimizer, names)])]
    assert got == ["model.embed.weight", "optim.model.embed.weight.exp_avg", "optim.model.embed.weight.exp_avg_sq", "optim.model.embed.weight.step"]
    whole = torch.randn(8)
    assert [r.name for r in regions([leaf(whole, "whole"), leaf(whole[2:4], "part")])] == ["whole"]


def test_parts_that_overlap_are_refused() -> None:
    whole = torch.randn(8)
    with pytest.raises(Unsupported, match="b: shares a part of its memory with a: register the whole"):
        regions([leaf(whole[:5], "a"), leaf(whole[3:], "b")])
    assert len(regions([leaf(whole[:4], "a"), leaf(whole[4:], "b")])) == 2


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.uint16, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    t = torch.arange(12).reshape(3, 4).to(dtype)
    (r,) = regions([leaf(t)])
    assert (r.dtype, r.shape, r.nbytes) == (str(dtype).removeprefix("torch."), (3, 4), 12 * t.element_size())
    assert content(t) == bits(t)


@pytest.mark.parametrize(("dtype", "real"), [(torch.complex64, "float32"), (torch.complex128, "float64")])
def test_complex(dtype: torch.dtype, real: str) -> None:
    t = torch.randn(3, 4, dtype=dtype)
    (r,) = regions([leaf(t)])
    assert (r.dtype, r.shape) == (real, (3, 4, 2))
    assert content(t) == bits(torch.view_as_real(t))


def test_layouts() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert dense(image)
    assert not image.is_contiguous()
    assert content(image) == bits(image.permute(0, 2, 3, 1))
    assert dense(torch.randn(3, 4).t())
    assert dense(torch.randn(3, 1, 4)[:, 0])
    for gaps in (torch.randn(4, 6)[:, ::2], torch.randn(4, 6)[:, :3], torch.ones(3).expand(4, 3)):
        with pytest.raises(Unsupported, match=r"t: shape .* has gaps or overlaps itself: make it contiguous"):
            regions([leaf(gaps)])
    assert dense(torch.randn(4, 6)[1:3])
    assert regions([leaf(torch.empty(0, 3)), leaf(torch.empty(()), "scalar")])[0].name == "scalar"


def test_sparse_and_quantised_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"t: layout torch\.sparse_coo"):
        regions([leaf(torch.eye(3).to_sparse())])


def test_long_names_stay_apart() -> None:
    tail = "x" * 200
    a, b = torch.randn(1), torch.randn(1)
    names = [r.name for r in regions([leaf(a, "a" + tail), leaf(b, "b" + tail)])]
    assert len(set(names)) == 2
    assert all(len(n.encode()) <= 127 for n in names)


def test_frozen_and_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].weight.requires_grad_(False)
    model.register_buffer("scratch", torch.zeros(1), persistent=False)
    kinds = {x.name: (x.changes, x.private) for x in model_leaves("m", model, lambda _: False)}
    assert kinds["m.0.weight"] == ("never", False)
    assert kinds["m.0.bias"] == ("window", False)
    assert kinds["m.1.running_mean"] == ("any", True)
    assert "m.scratch" not in kinds
    assert {x.name: x.private for x in model_leaves("m", model, lambda n: n == "m.1.running_mean")}["m.1.running_mean"] is False


class Gate(nn.Module):
    """A layer of a user's that has a part of that name beside other things."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2, bias=False)
        self.weight = nn.Parameter(torch.ones(2))


def test_names_without_wrappers() -> None:
    """What a wrapper puts before a name goes; a user's own part may have the same name, and two tensors had one then."""
    gate = nn.Sequential(Gate())
    own = ["model.0.weight", "model.0.module.weight"]
    for model in (gate, optim.swa_utils.AveragedModel(gate), nn.DataParallel(gate), torch.compile(gate)):
        names = [x.name for x in model_leaves("model", model, lambda _: False)]
        assert [n for n in names if n != "model.n_averaged"] == own, names
