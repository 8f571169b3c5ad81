"""Generators go on, bit for bit, from where they were kept. Those of numpy and torch where these are."""

from __future__ import annotations

import random
from typing import Any

import pytest

from replicad import Invalid, capsule, rng


def drawn() -> list[Any]:
    out: list[Any] = [random.random(), random.gauss(0, 1), random.randrange(10**20)]
    try:
        import numpy as np

        out += [np.random.rand(3).tolist(), np.random.randn(), int(np.random.randint(1 << 30))]
    except ImportError:
        pass
    try:
        import torch

        out += [torch.rand(5).tolist(), torch.randn(3).tolist(), torch.randperm(20).tolist()]
    except ImportError:
        pass
    return out


@pytest.mark.parametrize("seed", range(20))
def test_goes_on_bit_for_bit(seed: int) -> None:
    random.seed(seed)
    for _ in range(seed % 7):
        drawn()
    random.gauss(0, 1)  # its twin waits in the state
    kept = capsule.pack(rng.get())
    want = [drawn() for _ in range(3)]
    random.seed(0)
    drawn()
    rng.set(capsule.unpack(kept))
    assert [drawn() for _ in range(3)] == want
    assert [drawn() for _ in range(3)] != want, "the comparison can fail"
    rng.set(capsule.unpack(kept))
    assert capsule.pack(rng.get()) == kept


def test_preserved() -> None:
    before = rng.get()
    with rng.preserved():
        drawn()
    assert capsule.pack(rng.get()) == capsule.pack(before)
    with pytest.raises(ZeroDivisionError), rng.preserved():
        drawn()
        raise ZeroDivisionError
    assert capsule.pack(rng.get()) == capsule.pack(before)


def test_foreign_states_change_nothing() -> None:
    before = rng.get()
    kept = capsule.pack(before)
    short = before | {"python": before["python"] | {"words": before["python"]["words"][:-4]}}
    bad_at = before | {"python": before["python"] | {"words": before["python"]["words"][:-4] + b"\xff\xff\xff\xff"}}
    bad = [short, bad_at]
    if "numpy" in before:
        bad += [before | {"numpy": before["numpy"] | {"kind": "PCG64"}}, before | {"numpy": before["numpy"] | {"pos": 10**6}}]
    for state in bad:
        with pytest.raises(Invalid):
            rng.set(state)
        assert capsule.pack(rng.get()) == kept
