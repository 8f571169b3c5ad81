"""transformers.Trainer under its adapter, judged by replicad.testing.conformance."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="transformers is missing: see python/requirements-torch.txt")

import subject_huggingface as subjects
from conforming import equal, suite
from conftest import Daemon
from replicad.testing.conformance import Break

#: A step each. An epoch has three of them, of 2, 2 and 1 micro-batches; of every second one there is an evaluation, of every fourth a save.
RAISED = (
    Break("forward", 1), Break("second forward", 2, 1), Break("on_log", 3), Break("backward", 4, 1), Break("on_epoch_end", 6), Break("step", 7, 1), Break("save", 8),
    Break("on_step_end", 9, 1), Break("evaluation", 10), Break("step", 12), Break("on_train_end", 12, 1),
)  # fmt: skip
KILLED = (Break("second forward", 2), Break("evaluation", 4, 1), Break("step", 9))


def test_a_trainer_goes_on_as_if_nothing_had_been(daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(subjects.Kept, 2, daemon, tmp_path)
    equal(runs.through("raise", *RAISED) + runs.through("kill", *KILLED))
    control = runs.through("raise", Break("evaluation", 4), Break("save", 8, 1), due=False)
    assert [row.differs != "" for row in control.rows] == [True, True], f"the suite finds nothing where nothing is done again:\n{control}"
