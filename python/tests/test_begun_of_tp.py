"""What tensor parallelism leaves plain lies in each group, and nothing says how the pieces belong together. Known to be equal, they are cut for a run of another layout."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from replicad import Mismatch
from replicad._core.generations import Piece, Tensor
from replicad._core.region import Region
from replicad._torch.begun import Orders, _reads
from replicad._torch.layout import Sharded

ROWS, COLUMNS = 6, 4


def plain(*shapes: tuple[int, int]) -> Tensor:
    """Of a run in two groups."""
    pieces = tuple(Piece("group", i, "model.emb.weight", shape, None, 4 * shape[0] * shape[1]) for i, shape in enumerate(shapes))
    return Tensor("model.emb.weight", "float32", "window", None, (), (), pieces)


def sharded(rank: int) -> tuple[Region, Any, Sharded]:
    """As fully_shard has it on two ranks."""
    memory = (ctypes.c_uint8 * (4 * ROWS // 2 * COLUMNS))()
    region = Region("model.emb.weight", ctypes.addressof(memory), len(memory), dtype="float32", shape=(ROWS // 2, COLUMNS), keep=memory)
    spread: Any = None
    return region, memory, Sharded("model.emb.weight", spread, (ROWS, COLUMNS), (ROWS // 2, COLUMNS), (rank * ROWS // 2, 0), ("shard(0)",), (2,))


def orders(equal: bool) -> Orders:
    return Orders({}, {}, lambda name: equal)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("group", [0, 1])
def test_what_is_equal_in_all_groups_is_cut(rank: int, group: int) -> None:
    whole = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)
    raw = bytes(whole.view(torch.uint8).reshape(-1).tolist())
    region, memory, spread = sharded(rank)
    for read in _reads(region, plain((ROWS, COLUMNS), (ROWS, COLUMNS)), spread, group, orders(True)):
        assert read.piece.index == group
        part = raw[read.start : read.start + read.nbytes]
        if read.into is not None:
            read.into[:] = part
        else:
            assert read.then is not None
            read.then(bytearray(part))
    assert torch.equal(torch.frombuffer(memory, dtype=torch.float32).view(ROWS // 2, COLUMNS), whole[rank * ROWS // 2 : (rank + 1) * ROWS // 2])


def test_what_is_not_known_to_be_equal_is_refused() -> None:
    region, _, spread = sharded(0)
    for tensor, equal in ((plain((ROWS, COLUMNS), (ROWS, COLUMNS)), False), (plain((ROWS, COLUMNS), (COLUMNS, ROWS)), True)):
        with pytest.raises(Mismatch, match="2 pieces that are not known to be equal"):
            _reads(region, tensor, spread, 0, orders(equal))


def test_a_whole_of_another_shape_is_refused() -> None:
    region, _, spread = sharded(0)
    with pytest.raises(Mismatch, match=r"model\.emb\.weight is float32 \(6, 4\), was float32 \(8, 4\)"):
        _reads(region, plain((8, COLUMNS), (8, COLUMNS)), spread, 0, orders(True))
