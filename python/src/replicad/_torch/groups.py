"""Which ranks hold the same bytes: the replica groups that a model's layout makes.

How one tensor lies over the ranks of a job is a *spread*: a label for each rank, equal where the bytes are, None where this process
can't know it. Plain data in and out: what torch says of a model is :mod:`replicad._torch.layout`'s affair.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from ..errors import Mismatch

if TYPE_CHECKING:
    from .._core.rank import Rank

__all__ = ["Spread", "check", "clash", "derive", "everywhere", "flag", "grid", "on_mesh", "settle"]

#: A label for each rank of the job: equal labels, equal bytes. None: not known to this process.
Spread = tuple[Hashable, ...]


def everywhere(world: int) -> Spread:
    """The spread of what is equal on all ranks."""
    return ((),) * world


def on_mesh(world: int, ranks: Sequence[int], shape: Sequence[int], split: Sequence[bool], root: tuple[Sequence[int], Sequence[int]] | None = None) -> Spread:
    """The spread of a tensor over a mesh of ``shape`` whose ``ranks`` are given in row-major order: equal where the coordinates
    along all ``split`` dimensions are.

    ``root`` is the mesh (ranks, shape) that this one is a slice of. A rank beside the slice holds what that rank of the slice
    holds which has its coordinates in the dimensions that the slice spans. Ranks outside of the root are not known.
    """
    if math.prod(shape) != len(ranks) or len(split) != len(shape) or not set(ranks) <= set(range(world)):
        raise Mismatch(f"a mesh of ranks {list(ranks)} in shape {tuple(shape)}, {len(split)} placements, in a world of {world}")
    label = {rank: tuple(c for c, s in zip(at, split, strict=True) if s) for rank, at in zip(ranks, product(*map(range, shape)), strict=True)}
    if root is None or set(label) == set(root[0]):
        return tuple(label.get(r) for r in range(world))
    where = dict(zip(root[0], product(*map(range, root[1])), strict=True))
    ours = [where[r] for r in ranks]
    spanned = [len({at[d] for at in ours}) > 1 for d in range(len(root[1]))]
    of = {tuple(c for c, s in zip(where[r], spanned, strict=True) if s): r for r in ranks}
    there = {r: of.get(tuple(c for c, s in zip(at, spanned, strict=True) if s)) for r, at in where.items()}
    return tuple(None if (twin := there.get(r)) is None else label[twin] for r in range(world))


def grid(world: int, row: Sequence[int], column: Sequence[int]) -> Spread:
    """The spread of a tensor that is split over the ``row`` of this rank and replicated over its ``column``. Where the two make one
    regular grid of the whole world, all rows are taken to be like this one; else only row and column are known."""
    shared = set(row) & set(column)
    if len(shared) != 1 or not set(row) | set(column) <= set(range(world)):
        raise Mismatch(f"shards over ranks {list(row)} and replicas on ranks {list(column)} of a world of {world}: want groups that meet in this rank alone")
    (me,) = shared
    known: dict[int, int] = {r: i for i, r in enumerate(row)} | {c: row.index(me) for c in column}
    whole = {c + r - me: i for c in column for i, r in enumerate(row)}
    if len(whole) == len(row) * len(column) == world and set(whole) == set(range(world)):
        known = whole
    return tuple(known.get(r) for r in range(world))


def derive(world: int, over: Iterable[Spread]) -> tuple[int, ...] | None:
    """The replica group of each rank, numbered in the order of their lowest ranks: ranks are in one group if every tensor is equal on
    them. None where this process does not know how some tensor lies on some rank."""
    over = list(dict.fromkeys(over))
    number: dict[tuple[Hashable, ...], int] = {}
    groups = []
    for r in range(world):
        label = tuple(s[r] for s in over)
        if None in label:
            return None
        groups.append(number.setdefault(label, len(number)))
    return tuple(groups)


def clash(over: Iterable[Spread], given: Sequence[int]) -> tuple[int, int] | None:
    """Two ranks of one given group whose bytes are known to differ."""
    for s in dict.fromkeys(over):
        first: dict[int, int] = {}
        for r, g in enumerate(given):
            if s[r] is not None and s[first.setdefault(g, r)] != s[r]:
                return first[g], r
    return None


def flag(groups: Sequence[int]) -> str:
    """Groups as the launcher takes them."""
    return f"--groups {','.join(map(str, groups))}"


def check(over: Mapping[str, Spread], given: Sequence[int] | None) -> None:
    """:class:`Mismatch` where ranks whose bytes differ were put into one group: their roots would never agree. Groups that are
    finer than need be are safe."""
    if given is None:
        return
    for name, spread in over.items():
        if pair := clash([spread], given):
            right = derive(len(given), over.values())
            remedy = f"start the job with {flag(right)}, or with --groups auto" if right else "start the job with --groups that tell such ranks apart"
            raise Mismatch(
                f"ranks {pair[0]} and {pair[1]} are in one replica group ({flag(given)}), but hold different parts of {name}: "
                f"{remedy}; where it runs already, `replicad job end` it first"
            )


def settle(rank: Rank, over: Mapping[str, Spread]) -> None:
    """Holds the job's groups against the model's; in a job with ``--groups auto`` it names this rank's own."""
    check(over, rank.groups)
    if rank.group is None:
        groups = derive(rank.world, over.values())
        if groups is None:
            odd = next(name for name, s in over.items() if None in s)
            raise Mismatch(
                f"--groups auto: rank {rank.number} does not know which part of {odd} each rank holds, since its mesh is not of all {rank.world} ranks: give --groups by number"
            )
        rank.name_group(groups[rank.number])
