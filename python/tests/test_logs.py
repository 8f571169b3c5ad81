"""The files of loggers: a run that was broken leaves what the run that went through has left. test_lightning.py has CSVLogger in each of its runs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch  # noqa: F401
from lightning.pytorch.loggers import CSVLogger

import subject_accelerate
import subject_logs as subjects
from conforming import equal, suite
from conftest import Daemon
from replicad.adapters import lightning  # noqa: F401
from replicad.adapters._logs import Logs
from replicad.testing.conformance import Break, Subject

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in (".*LeafSpec:FutureWarning", ".*:UserWarning:lightning.*", ".*isinstance.treespec:FutureWarning")]


def opened(folder: Path, state: dict[str, Any] | None = None) -> tuple[Logs, Any]:
    """A new process of a job: a Trainer whose logger chooses its folder, and what is kept of it."""
    trainer = pl.Trainer(accelerator="cpu", devices=1, logger=CSVLogger(folder), enable_progress_bar=False, enable_model_summary=False)
    logs = Logs()
    logs.open(trainer)
    if state is not None:
        logs.load_state_dict(state)
    return logs, trainer.logger


def steps(folder: Path) -> dict[str, list[str]]:
    """The steps that a reader sees, by folder."""
    return {path.parent.name: [row["step"] for row in csv.DictReader(path.read_text().splitlines())] for path in sorted(folder.rglob("metrics*.csv"))}


def test_a_folder_is_a_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICAD_JOB", "lm")
    logs, logger = opened(tmp_path)
    logs.begins()
    for step in range(3):
        logger.log_metrics({"loss": 1.0}, step)
    kept = logs.state_dict()  # every row is on the disk by now
    assert steps(tmp_path) == {"version_0": ["0", "1", "2"]}
    logger.log_metrics({"loss": 1.0, "more": 2.0}, 3)
    logger.save()
    for _ in range(2):  # processes that go on from step 3
        logs, logger = opened(tmp_path, kept)
        assert steps(tmp_path) == {"version_0": ["0", "1", "2", "3"]}  # nothing is deleted before it is known
        logs.goes_on(3)
        assert steps(tmp_path) == {"version_0": ["0", "1", "2"]}
        logger.log_metrics({"loss": 1.0, "more": 2.0}, 3)
        last = logs.state_dict()
    assert steps(tmp_path) == {"version_0": ["0", "1", "2", "3"]}

    logs, logger = opened(tmp_path)  # another job of that name
    logs.begins()
    logger.log_metrics({"loss": 5.0}, 0)
    other = logs.state_dict()
    assert steps(tmp_path) == {"version_0": ["0", "1", "2", "3"], "version_1": ["0"]}

    for state in (last, other):  # two fits of a program
        logs, logger = opened(tmp_path, state)
        logs.goes_on(4)
        logs.state_dict()
    assert steps(tmp_path) == {"version_0": ["0", "1", "2", "3"], "version_1": ["0"]}
    assert logger.version == 1


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
