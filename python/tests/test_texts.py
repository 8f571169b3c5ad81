"""Texts read ahead, in a loader's state as torchtitan's datasets give it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from replicad import Mismatch
from replicad._core import capsule
from replicad.adapters._texts import packed, unpacked


def state(tokens: int) -> dict[str, Any]:
    """What torchdata's loader gives of torchtitan's dataset in the middle of a document, with a generator's state beside it."""
    texts = [150_000 + i % 1000 for i in range(tokens)]
    dataset = {"inputs_buffer": texts, "labels_buffer": [-100, *texts[1:]], "positions_buffer": list(range(tokens)), "sample_idx": 7, "data": {"shards": [(1, [2, True])]}}
    return {"_snapshot": {"worker_0": {"dataset_state": dataset}}, "rng": torch.arange(3), "flags": [True] * 100, "large": [2**40] * 100, "huge": [2**70] * 100}


def test_a_long_document_has_room() -> None:
    """100,000 tokens took 1.8 MB as text; in half of what a session makes room for, nothing has to grow, which one rank can't ask for alone."""
    was = state(100_000)
    kept = capsule.pack(packed(was, 8 << 20, "room"))
    assert len(kept) < (8 << 20) // 2
    now = unpacked(capsule.unpack(kept))
    assert torch.equal(now.pop("rng"), was.pop("rng"))
    assert now == was
    assert [type(x) for x in now["flags"]] == [bool] * 100


def test_a_document_that_is_too_long_names_the_setting() -> None:
    with pytest.raises(
        Mismatch, match=r"has read ahead take 1200800 bytes, and each copy of a step has room for 1048576: .* or begin a new one with checkpoint\.room=4194304, from a"
    ):
        packed(state(100_000), 1 << 20, "checkpoint.room")


def test_what_was_kept_as_it_is_comes_back() -> None:
    """By a release that packed nothing."""
    assert unpacked(state(100)["_snapshot"]) == state(100)["_snapshot"]
