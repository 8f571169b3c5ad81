"""The calls of examples that the frameworks publish, judged by replicad.testing.conformance: with what they do by themselves, with what follows the training, and with the state
that their users hang on what a trainer holds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import subject_idioms as idioms
import subject_published as subjects
from conforming import equal, suite
from conftest import Daemon
from replicad.testing.conformance import Break, Subject

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in (".*LeafSpec:FutureWarning", ".*:UserWarning:lightning.*", ".*isinstance.treespec:FutureWarning")]


KINDS = [subjects.Lightning, subjects.HuggingFace, subjects.Accelerate, idioms.Lightning, idioms.HuggingFace]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__.removeprefix('subject_')}.{kind.__name__}")
def test_an_example_goes_on_as_if_nothing_had_been(kind: type[Subject], daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(kind, 1, daemon, tmp_path)
    equal(runs.through("kill", *(Break(place, step) for place, step in kind.faults)))
