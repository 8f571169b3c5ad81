"""Tensors that are made of others, quantised optimizer state, and tensors anywhere in an optimizer: kept by the dense tensors inside, and
what can't be kept is refused with its path."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

from registered import Registered
from replicad import Unsupported
from replicad._torch.state import Leaf, materialise, regions
from replicad._torch.tensors import leaves

BLOCK = 4


class Quantised(torch.Tensor):
    """A float32 tensor in blocks of int8 codes with a scale each, as torchao has them for optimizer state and weights."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, shape: Any) -> Any:
        t = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=codes.device)  # type: ignore[attr-defined]
        t.codes, t.scale = codes, scale
        return t

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], list(self.shape)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any = None, stride: Any = None) -> Any:
        return cls(inner["codes"], inner["scale"], context)

    @classmethod
    def of(cls, t: torch.Tensor) -> Any:
        blocks = t.detach().reshape(-1, BLOCK)
        scale = blocks.abs().amax(1).clamp(min=1e-12) / 127
        return cls((blocks / scale[:, None]).round().to(torch.int8), scale, t.shape)

    def value(self) -> torch.Tensor:
        return (self.codes * self.scale[:, None]).reshape(self.shape)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            to, source = args
            source = source if isinstance(source, Quantised) else Quantised.of(source)
            to.codes.copy_(source.codes)
            to.scale.copy_(source.scale)
            return to
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].codes, args[0].scale, args[0].shape)
        raise NotImplementedError(f"{func} of a quantised tensor")


class Adam8(optim.Optimizer):
    """Adam with 8-bit averages: ``kept`` makes a parameter's entry of the state, and ``averages`` reads and writes them in it."""

    def __init__(self, params: Any, kept: Callable[[torch.Tensor], dict[str, Any]], averages: Callable[[dict[str, Any]], list[Any]]) -> None:
        super().__init__(params, {"lr": 0.05, "betas": (0.9, 0.99)})
        self.kept, self.averages = kept, averages

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for g in self.param_groups:
            for p in (p for p in g["params"] if p.grad is not None):
                s = self.state[p]
                if not s:
                    s.update(step=0, **self.kept(p))
                s["step"] += 1
                m, v = (a.value() for a in self.averages(s))
                m, v = m.lerp(p.grad, 1 - g["betas"][0]), v.lerp(p.grad.square(), 1 - g["betas"][1])
                for a, new in zip(self.averages(s), (m, v), strict=True):
                    a.copy_(new)
                p.sub_(g["lr"] * (m / (1 - g["betas"][0] ** s["step"])) / ((v / (1 - g["betas"][1] ** s["step"])).sqrt() + 1e-8))


def zeros(p: torch.Tensor) -> Any:
    return Quantised.of(torch.zeros_like(p))


def wrapped(params: Any) -> Adam8:
    """The averages are wrapper subclasses, as torchao's."""
    return Adam8(params, lambda p: {"exp_avg": zeros(p), "exp_avg_sq": zeros(p)}, lambda s: [s["exp_avg"], s["exp_avg_sq"]])


QMAP = torch.linspace(-1, 1, 256)


def plain(params: Any) -> Adam8:
    """Plain uint8 and float tensors among None and plain values, in lists, with a table that all share, as bitsandbytes' state is."""

    def kept(p: torch.Tensor) -> dict[str, Any]:
        a, b = zeros(p), zeros(p)
        return {"state": [a.codes, b.codes], "absmax": (a.scale, {"second": b.scale, "block": BLOCK}), "qmap": QMAP, "unorm": None, "history": [None, 1.5, "x"]}

    def averages(s: dict[str, Any]) -> list[Any]:
        n = s["state"][0].numel()
        return [Quantised(s["state"][0], s["absmax"][0], (n,)), Quantised(s["state"][1], s["absmax"][1]["second"], (n,))]

    return Adam8(params, kept, averages)


class Flat(nn.Module):
    """Its parameters have one dimension, for optimizers that know no other."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor] = lambda t: t, frozen: bool = False) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(make(torch.randn(16))), nn.Parameter(torch.randn(4))
        if frozen:
            self.base = nn.Parameter(Quantised.of(torch.randn(16)), requires_grad=False)
            self.register_buffer("mask", TwoTensor(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: Any) -> Any:
        w = self.w + self.base.value() if hasattr(self, "base") else self.w
        return torch.tanh(x @ w.reshape(4, 4) + self.b)


def train(model: nn.Module, optimizer: Any, first: int, steps: int, schedule: Any = None) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step))) - 0.5).square().mean()
        loss.backward()
        optimizer.step()
        if schedule:
            schedule.step()
        losses.append(float(loss.a) + 3 * float(loss.b) if isinstance(loss, TwoTensor) else float(loss.detach()))
    return losses


def adam(params: Any) -> optim.Optimizer:
    return optim.AdamW(params, lr=torch.tensor(0.05), foreach=False)


LAYOUTS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Any]]] = {
    "8-bit state by subclasses": (Flat, wrapped),
    "8-bit state in lists": (Flat, plain),
    "a frozen quantised weight": (lambda: Flat(frozen=True), adam),
    "two in one": (lambda: Flat(lambda t: TwoTensor(t, -t)), adam),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_load_is_what_training_goes_on_with(layout: str) -> None:
    """In the objects that it was taken from, and in others; and the state that is made beforehand changes nothing."""
    make, optimize = LAYOUTS[layout]

    def job(seed: int, beforehand: bool = True) -> Any:
        torch.manual_seed(seed)
        model = make()
        optimizer = optimize(model.parameters())
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return model, optimizer, schedule, Registered(model, optimizer) if beforehand else None

    model, optimizer, schedule, state = job(1)
    fresh, its, of, _ = job(1, beforehand=False)
    assert train(model, optimizer, 0, 3, schedule) == train(fresh, its, 0, 3, of)
    kept = copy.deepcopy(state.read())
    want = train(model, optimizer, 3, 4, schedule), state.read()
    assert all(want[1][0][r.name] != kept[0][r.name] for r in state.regions if state.changes[r.name] == "window" and not r.name.endswith(("qmap", "initial_lr")))
    other = job(2)
    assert other[3].table == state.table
    for m, o, s, registered in ((model, optimizer, schedule, state), other):
        registered.load(kept)
        s.last_epoch = 3
        assert (train(m, o, 3, 4, s), registered.read()) == want


def names(layout: str) -> list[str]:
    make, optimize = LAYOUTS[layout]
    model = make()
    return [r.name for r in Registered(model, optimize(model.parameters())).regions]


def test_names_of_inner_tensors() -> None:
    codes = ["exp_avg.codes", "exp_avg.scale", "exp_avg_sq.codes", "exp_avg_sq.scale"]
    assert names("8-bit state by subclasses") == ["model.w", "model.b", *(f"optim.model.{p}.{k}" for p in "wb" for k in codes)]
    lists = ["absmax.0", "absmax.1.second", "qmap", "state.0", "state.1"]
    assert names("8-bit state in lists") == ["model.w", "model.b", *(f"optim.model.{p}.{k}" for p in "wb" for k in lists if (p, k) != ("b", "qmap"))]
    assert names("two in one")[:6] == ["model.w.a", "model.w.b", "model.b", "optim.groups.0.lr", "optim.model.w.exp_avg.a", "optim.model.w.exp_avg.b"]
    model = Flat(frozen=True)
    found = Registered(model, optim.SGD([model.w, model.b], lr=0.1))
    assert found.changes == {"model.w": "window", "model.b": "window", "model.base.codes": "never", "model.base.scale": "never", "model.mask.a": "any", "model.mask.b": "any"}


def test_subclasses_in_subclasses() -> None:
    t = TwoTensor(TwoTensor(torch.zeros(2), torch.ones(2)), TwoTensor(torch.zeros(2), torch.ones(2)))
    assert [x.name for x in leaves("t", t, "window")] == ["t.a.a", "t.a.b", "t.b.a", "t.b.b"]


def test_hyperparameters_that_are_tensors() -> None:
    """A scheduler writes into them, and the first step of a load that forgot them would have another learning rate."""
    model = Flat()
    groups = [{"params": [model.w], "lr": torch.tensor(0.5)}, {"params": [model.b], "lr": 0.25, "betas": (torch.tensor(0.8), torch.tensor(0.9))}]
    optimizer = optim.AdamW(groups, lr=0.1)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    state = Registered(model, optimizer)
    hyper = ["optim.groups.0.initial_lr", "optim.groups.0.lr", "optim.groups.1.betas.0", "optim.groups.1.betas.1"]
    assert [n for n in state.changes if ".groups." in n] == hyper
    lr, betas = optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["betas"]
    kept = copy.deepcopy(state.read())
    optimizer.step()
    schedule.step()
    betas[0].fill_(0.1)
    assert (float(lr), optimizer.param_groups[1]["lr"]) == (0.25, 0.125)
    state.load(kept)
    assert optimizer.param_groups[0]["lr"] is lr
    assert optimizer.param_groups[1]["betas"] == betas
    assert (float(lr), optimizer.param_groups[1]["lr"], float(betas[0])) == (0.5, 0.25, float(torch.tensor(0.8)))


def test_state_that_is_no_parameters() -> None:
    """Optimizers keep counters and tensors under keys of their own."""

    def make() -> tuple[Any, Registered]:
        model = Flat()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        optimizer.state["calls"] = 0  # type: ignore[index]
        optimizer.state["global"] = {"norm": torch.zeros(2), "clipped": [0, torch.zeros(1)]}  # type: ignore[index]
        return optimizer, Registered(model, optimizer)

    optimizer, state = make()
    assert [r.name for r in state.regions] == ["model.w", "model.b", "optim.own.global.clipped.1", "optim.own.global.norm"]
    optimizer.state["calls"] = 7
    optimizer.state["global"]["clipped"][0] = 5
    optimizer.state["global"]["norm"].fill_(3)
    other, loaded = make()
    mine = other.state["global"]["norm"]
    loaded.load(state.read())
    assert other.state["calls"] == 7
    assert other.state["global"]["clipped"][0] == 5
    assert other.state["global"]["norm"] is mine
    assert mine.tolist() == [3, 3]


def test_lists_whose_plain_values_grow() -> None:
    """They have their length of then after a load, and the tensors that lie among them."""

    def make(*counts: int) -> tuple[Any, Any, Registered]:
        model = Flat()
        optimizer = optim.SGD([model.w], lr=0.1)
        optimizer.state[model.w] = {"history": [torch.zeros(1), *counts], "both": (0, torch.zeros(1))}
        return model, optimizer, Registered(model, optimizer)

    _, _, grown = make(1, 2, 3)
    model, optimizer, state = make(4)
    sum_, both = optimizer.state[model.w]["history"][0], optimizer.state[model.w]["both"][1]
    state.load(grown.read())
    history = optimizer.state[model.w]["history"]
    assert history[0] is sum_
    assert history[1:] == [1, 2, 3]
    assert optimizer.state[model.w]["both"][1] is both
    state.load(make(5)[2].read())
    assert optimizer.state[model.w]["history"][1:] == [5]


def with_state(value: Any) -> Any:
    model = Flat()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.w] = {"x": [None, value]}
    return model, optimizer


def with_buffer(value: Any) -> Any:
    model = Flat()
    model.register_buffer("x", value)
    return model, optim.SGD(model.parameters(), lr=0.1)


def with_parameter(value: Any) -> Any:
    model: Any = nn.Module()
    model.x = value if isinstance(value, nn.Parameter) else nn.Parameter(value, requires_grad=False)
    return model, optim.SGD([model.x], lr=0.1)


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), r"layout torch\.sparse_coo, torch\.float32: use the dense tensors"),
    "sparse rows": (lambda: torch.eye(3).to_sparse_csr(), r"layout torch\.sparse_csr"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), r"layout torch\.strided, torch\.qint8: use the dense"),
    "meta": (lambda: torch.empty(3, device="meta"), r"lies on the device meta: give it memory first \(to_empty\)"),
    "gaps": (lambda: torch.ones(4, 6)[:, ::2], r"shape \(4, 3\) with strides \(6, 2\) has gaps or overlaps itself: make it contiguous"),
    "overlaps": (lambda: torch.ones(3).expand(4, 3), r"has gaps or overlaps itself"),
    "masked": (lambda: masked_tensor(torch.ones(2), torch.tensor([True, False])), "a MaskedTensor does not say which tensors it is made of: it needs __tensor_flatten__"),
    "a sparse one inside": (lambda: TwoTensor(torch.eye(3).to_sparse(), torch.eye(3).to_sparse()), r"\.a: layout torch\.sparse_coo"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize(
    ("put", "path"),
    [(with_parameter, r"^model\.x"), (with_buffer, r"^model\.x"), (with_state, r"^optim\.model\.w\.x\.1")],
    ids=["parameter", "buffer", "state"],
)
def test_what_is_refused(kind: str, put: Callable[[Any], Any], path: str) -> None:
    make, text = REFUSED[kind]
    with pytest.raises(Unsupported, match=path + (r"" if text.startswith(r"\.") else ": ") + f".*{text}"):
        Registered(*put(make()))


def test_what_has_no_memory_yet_is_refused() -> None:
    model = nn.LazyLinear(3)
    with pytest.raises(Unsupported, match=r"^model\.weight: has no shape yet: run a forward first"):
        Registered(model, optim.SGD(model.parameters(), lr=0.1))


def test_optimizers_that_are_refused() -> None:
    model = Flat()
    optimizer = optim.SGD([model.w], lr=0.1)
    optimizer.state[model.b]["x"] = torch.zeros(1)
    with pytest.raises(Unsupported, match=r"SGD: has state of a tensor of shape \(4,\) that is in none of its parameter groups: delete it"):
        Registered(model, optimizer)
    with pytest.raises(Unsupported, match=r"object: no param_groups: give the torch\.optim\.Optimizer objects that it is made of"):
        materialise(object())  # type: ignore[arg-type]
    quantised = Flat(Quantised.of)
    with pytest.raises(Unsupported, match=r"AdamW: its state can't be made by a step with zero gradients \(NotImplementedError: .*take a step before"):
        materialise(optim.AdamW(quantised.parameters()))


def test_a_frozen_span_must_not_hide_what_is_trained() -> None:
    t = torch.zeros(4)
    with pytest.raises(Unsupported, match="b: shares the memory of a, which is frozen: set requires_grad on both, or on neither"):
        regions([Leaf("a", t, "never"), Leaf("b", t[:2], "window")])
    assert len(regions([Leaf("a", t, "window"), Leaf("b", t[:2], "never")])) == 1


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    ("dtype", "shape", "want"),
    [
        *([(torch.float8_e8m0fnu, (2, 3), ("uint8", (6,)))] if hasattr(torch, "float8_e8m0fnu") else []),
        (torch.float8_e4m3fnuz, (4,), ("uint8", (4,))),
        (torch.complex32, (2,), ("float16", (2, 2))),
    ],
)
def test_types_without_a_name_are_bytes(dtype: Any, shape: Any, want: Any) -> None:
    (r,) = regions([Leaf("t", torch.empty(shape, dtype=dtype), "window")])
    assert (r.dtype, r.shape) == want
