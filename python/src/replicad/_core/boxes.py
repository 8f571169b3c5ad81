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
    """Which pieces give a box: of equal pieces the first. None where together they do not give all of it, or where two that differ overlap: then one of them is not what it
    says."""
    cuts, seen = [], set()
    for i, piece in enumerate(pieces):
        if piece not in seen and (box := _meet(want, piece)) is not None:
            cuts.append(Cut(i, box))
        seen.add(piece)
    return cuts if sum(c.box.size for c in cuts) == want.size and not _overlap([c.box for c in cuts]) else None


def _overlap(boxes: list[Box]) -> bool:
    """Whether two boxes have an element in common. Those that begin behind the end of one in the first dimension are not compared with it."""
    boxes = sorted(boxes)
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            if a.at and b.at[0] >= a.at[0] + a.shape[0]:
                break
            if _meet(a, b) is not None:
                return True
    return False
