"""What is kept comes back as it was, with the order in which it lies in memory and the type of what holds it, or is refused with what to do: each kind in each place of
state. Kernels add in the order of memory, so that a matrix that lies otherwise gives other bits."""

from __future__ import annotations

import ctypes
import json
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import replicad
from replicad import Unsupported
from replicad._core import capsule
from replicad._torch.kept import How, Kept
from replicad._torch.objects import Objects
from replicad._torch.state import regions


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7), dtype=torch.float32).to(dtype)


class Named(OrderedDict):  # type: ignore[type-arg]
    """A class of somebody's own."""


#: Dense tensors in each order that there is.
DENSE: dict[str, Callable[[], torch.Tensor]] = {
    "in a row": lambda: draw(4, 6),
    "transposed": lambda: draw(4, 6).T,
    "of linalg.inv": lambda: torch.linalg.inv(draw(5, 5) + 9 * torch.eye(5)),
    "permuted": lambda: draw(2, 3, 4).permute(1, 2, 0),
    "channels last": lambda: draw(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last, one channel": lambda: draw(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "channels last in 3 dimensions": lambda: draw(2, 3, 2, 2, 2).to(memory_format=torch.channels_last_3d),
    "one column": lambda: draw(1, 5).T,
    "bfloat16, transposed": lambda: draw(4, 6, dtype=torch.bfloat16).T,
    "bool, transposed": lambda: (draw(4, 6) > 0).T,
    "complex, conjugated, transposed": lambda: torch.complex(draw(4, 6), draw(4, 6)).mH,
}
#: With gaps, or with elements that are there once.
LOOSE: dict[str, Callable[[], torch.Tensor]] = {
    "a column": lambda: draw(6, 4)[:, 1],
    "a part of the columns": lambda: draw(6, 8)[:, 2:5],
    "each other": lambda: draw(12)[::2],
    "expanded": lambda: draw(1, 4).expand(3, 4),
    "expanded and transposed": lambda: draw(4, 6).T.unsqueeze(1).expand(6, 3, 4),
    "a float8, transposed": lambda: draw(4, 6).to(torch.float8_e4m3fn).T,
    "negative": lambda: torch.complex(draw(4, 6), draw(4, 6)).conj().imag,
    "nothing, transposed": lambda: draw(3, 0).T,
}
OTHERS: dict[str, Callable[[], Any]] = {
    "an array": lambda: draw(4, 6).numpy(),
    "an array by columns": lambda: np.asfortranarray(draw(4, 6).numpy()),
    "an array, permuted": lambda: draw(2, 3, 4).numpy().transpose(1, 2, 0),
    "a dict": lambda: {"b": 1, "a": draw(3, 4).T},
    "an OrderedDict": lambda: OrderedDict([("b", 1), ("a", draw(3, 4).T)]),
    "an OrderedDict by number": lambda: OrderedDict([(3, "x"), (1, OrderedDict())]),
    "a module's state": lambda: nn.BatchNorm1d(2).state_dict(),
    "a tuple in a list": lambda: [(1, 2.5), [None, True]],
    "a Counter": lambda: Counter("abca"),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a far column": (lambda: draw(10, 100)[:, 3], r"strides \(100,\) is a small part of the memory that it lies in: keep a copy.*contiguous\(\)"),
    "overlapping": (lambda: draw(8).as_strided((3, 4), (2, 1)), r"strides \(2, 1\) overlaps itself: keep a copy \(\.contiguous\(\)"),
    "a masked array": (lambda: np.ma.masked_array([1.0, 2.0], [0, 1]), "make it an array of numbers .*mask"),
    "a class of its own": (lambda: Named(a=1), r"Named can't be kept without pickle: make it a dict \(dict\(x\)\)"),
    "a defaultdict": (lambda: defaultdict(int), r"make it a dict \(dict\(x\)\)"),
    "a set": (lambda: {1}, "make it a list"),
    "a deque": (lambda: deque([1]), "make it a list"),
}


class Holder:
    """An object with a state."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Extra(nn.Module):
    """A module with state besides its tensors."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value

    def get_extra_state(self) -> Any:
        return {"value": self.value}

    def set_extra_state(self, state: Any) -> None:
        self.value = state["value"]


def grouped(value: Any) -> tuple[Kept, Callable[[], Any]]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "value": value}], lr=0.1)
    return kept(model=model, optimizer=optimizer), lambda: optimizer.param_groups[0]["value"]


def stated(value: Any) -> tuple[Kept, Callable[[], Any]]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.bias]["value"] = value
    return kept(model=model, optimizer=optimizer), lambda: optimizer.state[model.bias]["value"]


def holding(kind: str, wrap: Callable[[Any], Any] = lambda o: o) -> Callable[[Any], tuple[Kept, Callable[[], Any]]]:
    def make(value: Any) -> tuple[Kept, Callable[[], Any]]:
        holder = Extra(value) if kind == "model" else Holder(value)
        given = wrap(holder)
        return kept(**{kind: {"it": given} if kind == "extra" else given}), lambda: holder.value

    return make


def kept(**given: Any) -> Kept:
    objects = Objects(given, lambda _: False, keep_rng=False)
    return Kept(objects, How(lambda objects, *_: objects.own()))


#: Small state: a value, and what makes a program that has it there, and says what is there.
SMALL: dict[str, Callable[[Any], tuple[Kept, Callable[[], Any]]]] = {
    "scheduler": holding("scheduler"),
    "scaler": holding("scaler"),
    "data": holding("data"),
    "extra": holding("extra"),
    "moves": holding("extra", replicad.moves),
    "own": holding("extra", lambda o: replicad.own(o, most=1 << 16)),
    "extra state": holding("model"),
}
#: Tensors are registered where they lie there, and plain values are small state.
OF_OPTIMIZERS = {"optimizer's group": grouped, "optimizer's state": stated}


def carried(of: Kept, to: Kept) -> None:
    """What a copy is made of, and what a resume does with it."""
    of.write()
    for a, b in ((of.shared, to.shared), (of.own, to.own), *((of.tensors[k], to.tensors[k]) for k in of.tensors)):
        ctypes.memmove(b.region.address, a.region.address, min(a.region.nbytes, b.region.nbytes))
    to.objects.set_common(to.shared.value())
    to.objects.set_own(to.own.value())
    to.set_tensors()


def alike(a: Any, b: Any) -> bool:
    """Equal in type, bits, and in the order in which it lies in memory."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        strides = a.numel() == 0 or a.stride() == b.stride()
        as_bytes = [x.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)] if a.numel() else [torch.empty(0)] * 2
        return a.dtype == b.dtype and a.shape == b.shape and strides and torch.equal(*as_bytes)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.strides == b.strides and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        meta = [getattr(x, "_metadata", None) for x in (a, b)]
        return list(a) == list(b) and all(alike(a[k], b[k]) for k in a) and meta[0] == meta[1]
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    return bool(a == b)


def test_the_comparison_can_fail() -> None:
    t = draw(4, 6)
    for a, b in ((t, t.T.contiguous().T), (t, t + 1), (OrderedDict(a=1), {"a": 1}), (np.ones((2, 3)), np.asfortranarray(np.ones((2, 3)))), ((1,), [1])):
        assert not alike(a, b)
    state = nn.BatchNorm1d(2).state_dict()
    assert not alike(state, OrderedDict(state))


@pytest.mark.parametrize("place", SMALL)
def test_small_state(place: str) -> None:
    for what, make in (DENSE | LOOSE | OTHERS).items():
        (first, _), (second, has) = SMALL[place](make()), SMALL[place](None)
        carried(first, second)
        assert alike(has(), make()), f"{what}: {has()!r:.200}"
        first.write()
        second.write()
        packed = [[bytes(c.region.keep)[: c.used] for c in (k.shared, k.own, *k.tensors.values())] for k in (first, second)]
        assert packed[0] == packed[1], f"{what}: equal states have equal bytes"


@pytest.mark.parametrize("value", [OrderedDict([("b", 1), ("a", (2, [3.5]))]), OrderedDict([(3, "x"), (1, OrderedDict())]), {"b": {"c": 1}}, Counter("aab"), [(1,)]], ids=repr)
@pytest.mark.parametrize("place", OF_OPTIMIZERS)
def test_values_of_optimizers(place: str, value: Any) -> None:
    for had in (value, type(value)()):
        (first, _), (second, has) = OF_OPTIMIZERS[place](value), OF_OPTIMIZERS[place](had)
        carried(first, second)
        assert alike(has(), value), f"{has()!r:.200}"


@pytest.mark.parametrize("place", SMALL)
def test_what_would_come_back_otherwise_is_refused(place: str) -> None:
    for make, why in REFUSED.values():
        with pytest.raises(Unsupported, match=why) as info:
            SMALL[place](make())
        assert "value" in str(info.value), "it names the path"


def tensors(place: str, make: Callable[[], torch.Tensor]) -> tuple[Kept, Callable[[], torch.Tensor]]:
    """A program that has a tensor in a place where it is registered by its address."""
    m: Any = nn.Module()
    if place == "buffer":
        m.register_buffer("it", make())
    else:
        m.it = nn.Parameter(make(), requires_grad=place != "frozen")
    if place != "moment":
        return kept(model=m), lambda: m.it.detach()
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    of = kept(model=m, optimizer=optimizer)
    return of, lambda: optimizer.state[m.it]["momentum_buffer"]


@pytest.mark.parametrize("what", [n for n in DENSE if not n.startswith("bool")])
@pytest.mark.parametrize("place", ["frozen", "buffer", "moment"])
def test_registered_tensors(place: str, what: str) -> None:
    """They stay where the program has made them: a process that makes them in the same order has the same bits in it."""
    make = DENSE[what]
    (first, had), (second, has) = tensors(place, make), tensors(place, make)
    had().copy_(make())
    has().zero_()
    for a, b in zip(regions(first.staging.leaves), regions(second.staging.leaves), strict=True):
        ctypes.memmove(b.address, a.address, a.nbytes)
    assert alike(has(), had())
    assert has().stride() == make().resolve_conj().stride() or place == "moment"


@pytest.mark.parametrize("what", ["a column", "expanded"])
@pytest.mark.parametrize("place", ["parameter", "frozen", "buffer", "moment"])
def test_registered_tensors_with_gaps_are_refused(place: str, what: str) -> None:
    with pytest.raises(Unsupported, match=r"model\.it: shape .* with strides .* has gaps or overlaps itself: make it contiguous"):
        tensors(place, LOOSE[what])


def test_an_array_with_gaps_lies_as_numpys_copy_of_it() -> None:
    a = draw(6, 8).numpy().T[1:5, ::2]
    assert alike(capsule.unpack(capsule.pack(a)), a.copy(order="K"))
    assert alike(capsule.unpack(capsule.pack(a[::-1])), a[::-1].copy(order="K"))


def test_products_have_the_same_bits() -> None:
    """Why it matters: a product of what lies otherwise may differ in the last bit, and does not if it lies as it lay."""
    t = torch.linalg.inv(draw(64, 64) + 9 * torch.eye(64))
    back = capsule.unpack(capsule.pack(t))
    x = draw(64, 64)
    assert torch.equal(back @ x, t @ x)
    assert torch.equal(back.sum(0), t.sum(0))


@pytest.mark.parametrize(
    "change",
    [
        {"strides": [1]}, {"strides": [1, -4]}, {"strides": [1, 1]}, {"strides": [1, 2.0]}, {"strides": "14"}, {"strides": [2**63, 1]}, {"strides": [1, 2**62]},
        {"strides": [0, 1]}, {"strides": [17 * 24, 1]}, {"strides": {}}, {"shape": [4, 0]}, {"shape": [2**62, 6], "strides": [1, 2**62]},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_hostile_strides(kind: str, change: dict[str, Any]) -> None:
    t: Any = draw(6, 4).T
    b = capsule.pack(t if kind == "tensor" else t.numpy())
    text = re.search(rb'"shape":\[4,6\],"strides":\[1,4\]', b)
    assert text, b[:200]
    n = int.from_bytes(b[8:16], "little")
    tree = json.loads(b[16 : 16 + n]) | change
    head = json.dumps(tree).encode()
    raw = capsule.MAGIC + len(head).to_bytes(8, "little") + head
    with pytest.raises(replicad.Corrupt):
        capsule.unpack(raw + bytes(-len(raw) % 64) + b[-128:])


@pytest.mark.parametrize("inner", [1, "x", None, {"$": "tuple", "v": []}, [[1]], [[[], 1]]], ids=repr)
def test_hostile_ordered_dicts(inner: Any) -> None:
    head = json.dumps({"$": "ordered", "v": inner}).encode()
    with pytest.raises(replicad.Corrupt):
        capsule.unpack(capsule.MAGIC + len(head).to_bytes(8, "little") + head + bytes(64))
