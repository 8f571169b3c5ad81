"""The calls of examples that the frameworks publish, judged by replicad.testing.conformance: with what they do by themselves, and with what follows the training."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import subject_published as subjects
from conforming import equal, suite
from conftest import Daemon
from replicad.testing.conformance import Break, Subject

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in (".*LeafSpec:FutureWarning", ".*:UserWarning:lightning.*", ".*isinstance.treespec:FutureWarning")]


@pytest.mark.parametrize("kind", [subjects.Lightning, subjects.HuggingFace, subjects.Accelerate], ids=lambda kind: kind.__name__)
def test_an_example_goes_on_as_if_nothing_had_been(kind: type[Subject], daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(kind, 1, daemon, tmp_path)
    equal(runs.through("kill", *(Break(place, step) for place, step in kind.faults)))
