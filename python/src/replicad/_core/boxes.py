"""Boxes of whole tensors: where a piece begins, and its shape. What a rank wants of a tensor is put together from the pieces that overlap it."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

__all__ = ["Box", "Cut", "cover"]


class Box(NamedTuple):
    """A box of a whole tensor, in elements."""

    at: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)


class Cut(NamedTuple):
    """What one piece gives: the box of the whole, by the piece's number among those that were asked about."""

    piece: int
    box: Box


def _meet(a: Box, b: Box) -> Box | None:
    at = tuple(map(max, a.at, b.at))
    ends = [min(p + n, q + m) for p, n, q, m in zip(a.at, a.shape, b.at, b.shape, strict=True)]
    shape = tuple(end - begin for begin, end in zip(at, ends, strict=True))
    return Box(at, shape) if all(n > 0 for n in shape) else None


def cover(want: Box, pieces: Iterable[Box]) -> list[Cut] | None:
    """Which pieces give a box. Pieces are equal or do not overlap: of equal ones the first gives. None where together they do not give all of it."""
    cuts, seen, left = [], set(), want.size
    for i, piece in enumerate(pieces):
        if left == 0:
            break
        if piece not in seen and (box := _meet(want, piece)) is not None:
            cuts.append(Cut(i, box))
            left -= box.size
        seen.add(piece)
    return cuts if left == 0 else None
