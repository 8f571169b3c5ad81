"""The files of loggers: a run that was broken leaves what the run that went through has left. test_lightning.py has CSVLogger in each of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch  # noqa: F401

import subject_accelerate
import subject_logs as subjects
from conforming import equal, suite
from conftest import Daemon
from replicad.testing.conformance import Break, Subject

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in (".*LeafSpec:FutureWarning", ".*:UserWarning:lightning.*", ".*isinstance.treespec:FutureWarning")]


@pytest.mark.long
def test_lightnings_default_logger_goes_on_in_its_folder(daemon: Daemon, tmp_path: Path) -> None:
    """Twelve steps in three epochs: behind the fourth there is a validation, a value of the epoch, and a save."""
    runs = suite(subjects.Default, 1, daemon, tmp_path)
    equal(runs.through("kill", Break("forward", 3), Break("on_train_epoch_end", 8)) + runs.through("raise", Break("on_train_batch_end", 6)))


@pytest.mark.long
def test_a_folder_with_a_version(daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(subjects.Csv, 2, daemon, tmp_path)
    equal(runs.through("kill", Break("forward", 3, 1), Break("on_train_epoch_end", 8)) + runs.through("raise", Break("on_train_batch_end", 6)))


#: What stays the same for as long as the adapter and the packages do: see test_conformance.py.
OTHERS = {"tensorboard": [subjects.Board, subjects.HfBoard, subjects.AccBoard], "wandb": [subjects.Wandb, subjects.HfWandb, subjects.AccWandb]}


@pytest.mark.long
@pytest.mark.parametrize(("package", "kind"), [(p, k) for p, kinds in OTHERS.items() for k in kinds], ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_loggers_of_other_packages(package: str, kind: type[Subject], daemon: Daemon, tmp_path: Path) -> None:
    pytest.importorskip(package, reason=f"{package} is missing: `make frameworks-test` has it")
    runs = suite(kind, 1, daemon, tmp_path)
    last = "on_train_epoch_end" if issubclass(kind, subjects.Csv) else "evaluation"
    equal(runs.through("kill", Break("forward", 3), Break(last, 9 if issubclass(kind, subject_accelerate.Kept) else 8)) + runs.through("raise", Break("step", 6)))
    if package == "wandb":
        plain, *broken = [subjects.runs(folder, kind.axis) for folder in sorted(tmp_path.glob(f"{kind.__name__}-1-*"))]
        (whole,) = plain.values()
        for n, of in enumerate(broken):
            ((name, rows),) = of.items()  # one run
            assert name == "one"
            assert rows.items() <= whole.items()
            # What a process that was killed had not sent to W&B's own is gone: the rows of its last seconds.
            assert {key for key in whole if key[0] > (9 if n == 0 else -1)} <= rows.keys()
