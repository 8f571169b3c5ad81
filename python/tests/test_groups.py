"""Replica groups from meshes and process groups: against arrays that are really cut as the placements say."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest

from replicad import Mismatch
from replicad._torch.groups import check, clash, derive, everywhere, flag, grid, on_mesh


def pieces(ranks: np.ndarray, split: tuple[bool, ...]) -> dict[int, bytes]:
    """What each rank of a mesh has of an array of distinct numbers that is cut along one of its own dimensions for each split
    dimension of the mesh."""
    whole = np.arange(math.prod(ranks.shape)).reshape(ranks.shape)
    held = {}
    for at in product(*map(range, ranks.shape)):
        piece = whole[tuple(slice(c, c + 1) if s else slice(None) for c, s in zip(at, split, strict=True))]
        held[int(ranks[at])] = piece.tobytes()
    return held


def partition(held: dict[int, object]) -> set[frozenset[int]]:
    return {frozenset(r for r in held if held[r] == v) for v in held.values()}


def sets(groups: tuple[int, ...]) -> set[frozenset[int]]:
    return {frozenset(r for r, g in enumerate(groups) if g == n) for n in groups}


SHAPES = [(1,), (2,), (4,), (1, 2), (2, 2), (2, 3), (3, 2), (1, 4), (2, 1, 2), (2, 2, 2), (2, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_split_of_every_mesh(shape: tuple[int, ...]) -> None:
    world = math.prod(shape)
    for order in (list(range(world)), random.Random(world).sample(range(world), world)):
        ranks = np.array(order).reshape(shape)
        for split in product((False, True), repeat=len(shape)):
            groups = derive(world, [on_mesh(world, order, shape, split)])
            assert groups is not None
            assert sets(groups) == partition(pieces(ranks, split))
            assert groups[0] == 0
            assert sorted(set(groups)) == list(range(len(set(groups))))


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (2, 2, 2), (2, 3, 2)], ids=str)
def test_two_tensors_split_differently(shape: tuple[int, ...]) -> None:
    """Ranks are in one group if they hold the same of both."""
    world = math.prod(shape)
    ranks = np.arange(world).reshape(shape)
    for a, b in product(product((False, True), repeat=len(shape)), repeat=2):
        one, other = pieces(ranks, a), pieces(ranks, b)
        groups = derive(world, [on_mesh(world, range(world), shape, a), everywhere(world), on_mesh(world, range(world), shape, b)])
        assert groups is not None
        assert sets(groups) == partition({r: (one[r], other[r]) for r in range(world)})


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (2, 2, 2), (3, 2, 2)], ids=str)
def test_slices_of_a_mesh(shape: tuple[int, ...]) -> None:
    """Each rank knows its own slice, and all come to the same groups: those of the tensor that is replicated over what the slice lacks."""
    world = math.prod(shape)
    order = random.Random(str(shape)).sample(range(world), world)
    ranks = np.array(order).reshape(shape)
    for kept in product((False, True), repeat=len(shape)):
        if not any(kept):
            continue
        sizes = tuple(n for n, k in zip(shape, kept, strict=True) if k)
        for split in product((False, True), repeat=len(sizes)):
            rest = iter(split)
            whole = tuple(next(rest) if k else False for k in kept)
            want = derive(world, [on_mesh(world, order, shape, whole)])
            for at in product(*map(range, shape)):
                mine = ranks[tuple(slice(None) if k else c for c, k in zip(at, kept, strict=True))].reshape(-1).tolist()
                assert derive(world, [on_mesh(world, mine, sizes, split, (order, shape))]) == want


def test_a_mesh_of_a_part_of_the_world() -> None:
    spread = on_mesh(4, [1, 2], (2,), (True,))
    assert derive(4, [spread]) is None
    assert derive(4, [everywhere(4)]) == (0, 0, 0, 0)
    assert clash([spread], (0, 1, 2, 0)) is None  # what is known fits
    assert clash([spread], (0, 1, 1, 0)) == (1, 2)
    assert derive(4, [on_mesh(4, [1], (1,), (True,), ([0, 1], (2,)))]) is None  # ranks 2 and 3 are outside of the root too


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 2), (2, 4), (1, 3), (3, 1)])
def test_hybrid_groups(rows: int, columns: int) -> None:
    """Process groups of hybrid sharding: a rank knows its row and its column, and takes the other rows to be alike."""
    world = rows * columns
    for ranks in (np.arange(world).reshape(rows, columns), np.arange(world).reshape(columns, rows).T):
        want = derive(world, [on_mesh(world, ranks.flatten().tolist(), ranks.shape, (False, True))])
        for i, j in product(range(rows), range(columns)):
            assert derive(world, [grid(world, ranks[i].tolist(), ranks[:, j].tolist())]) == want


def test_hybrid_groups_without_a_grid() -> None:
    spread = grid(4, [0, 3], [0, 1])  # 3 is row 0's second; whether rank 2 is beside 1 or not can't be known from here
    assert spread == (0, 0, None, 1)
    assert derive(4, [spread]) is None
    with pytest.raises(Mismatch, match="meet in this rank alone"):
        grid(4, [0, 1], [2, 3])
    with pytest.raises(Mismatch, match="of a world of 2"):
        grid(2, [0, 5], [0])


@pytest.mark.parametrize(
    ("ranks", "shape", "split"), [([0, 1], (3,), (True,)), ([0, 1], (2,), ()), ([0, 9], (2,), (True,)), ([0, -1], (2,), (True,))], ids=["size", "placements", "rank", "negative"]
)
def test_a_mesh_that_can_not_be(ranks: list[int], shape: tuple[int, ...], split: tuple[bool, ...]) -> None:
    with pytest.raises(Mismatch, match="in a world of 4"):
        on_mesh(4, ranks, shape, split)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_given_grouping(world: int) -> None:
    """Given groups are refused exactly where they put ranks together that the mesh tells apart."""
    shapes = [s for s in SHAPES if math.prod(s) == world]
    for shape in shapes:
        for split in product((False, True), repeat=len(shape)):
            spread = on_mesh(world, range(world), shape, split)
            right = derive(world, [spread])
            assert right is not None
            for given in product(range(world), repeat=world):
                coarse = any(given[a] == given[b] and right[a] != right[b] for a, b in product(range(world), repeat=2))
                if not coarse:
                    check({"w": spread}, given)
                    continue
                with pytest.raises(Mismatch) as err:
                    check({"x": everywhere(world), "w": spread}, given)
                assert f"({flag(given)}), but hold different parts of w: start the job with {flag(right)}, or with --groups auto" in str(err.value)


def test_nothing_given() -> None:
    check({"w": on_mesh(2, [0, 1], (2,), (True,))}, None)
