"""Boxes against numpy's own slicing: every way to cut small tensors, and wants of every kind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from replicad._core.boxes import Box, cover


def slices(box: Box, of: tuple[int, ...] | None = None) -> tuple[slice, ...]:
    at = box.at if of is None else tuple(a - b for a, b in zip(box.at, of, strict=True))
    return tuple(slice(a, a + n) for a, n in zip(at, box.shape, strict=True))


def chunks(n: int, parts: int) -> list[tuple[int, int]]:
    size = -(-n // parts)
    return [(i * size, max(0, min(size, n - i * size))) for i in range(parts)]


@pytest.mark.parametrize("shape", [(), (7,), (4, 6), (3, 5, 2)])
def test_every_cut_gives_every_want(shape: tuple[int, ...]) -> None:
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    for parts in itertools.product((1, 2, 3), repeat=len(shape)):
        pieces = [Box(tuple(a for a, _ in c), tuple(n for _, n in c)) for c in itertools.product(*map(chunks, shape, parts))]
        pieces = [p for p in pieces if p.size] * 2  # replicated
        for want_parts in itertools.product((1, 2), repeat=len(shape)):
            for c in itertools.product(*map(chunks, shape, want_parts)):
                want = Box(tuple(a for a, _ in c), tuple(n for _, n in c))
                if not want.size:
                    continue
                cuts = cover(want, pieces)
                assert cuts is not None
                got = np.full(want.shape, -1)
                for cut in cuts:
                    piece = whole[slices(pieces[cut.piece])]
                    got[slices(cut.box, want.at)] = piece[slices(cut.box, pieces[cut.piece].at)]
                assert (got == whole[slices(want)]).all()


def test_what_is_not_there_is_not_made_up() -> None:
    assert cover(Box((0,), (8,)), [Box((0,), (4,))]) is None
    assert cover(Box((0,), (8,)), [Box((0,), (4,)), Box((0,), (4,))]) is None
    assert cover(Box((0,), (8,)), [Box((0,), (4,)), Box((2,), (4,))]) is None
    assert cover(Box((0, 0), (2, 4)), [Box((0, 0), (2, 3)), Box((1, 2), (1, 2))]) is None
