"""transformers.Trainer under its adapter, judged by replicad.testing.conformance; its refusals, and what it does without a launcher."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import importlib

from transformers import Trainer, TrainerCallback

import replicad
import subject_huggingface as subjects
from conforming import equal, suite, waiting
from conftest import ROOT, Daemon
from replicad.adapters import huggingface
from replicad.errors import Invalid, SessionState, Timeout, Unsupported
from replicad.testing.conformance import Break, Run

#: A step each. An epoch has three of them, of 2, 2 and 1 micro-batches; of every second one there is an evaluation, of every fourth a save.
RAISED = (
    Break("forward", 1), Break("second forward", 2, 1), Break("on_log", 3), Break("backward", 4, 1), Break("on_epoch_end", 6), Break("step", 7, 1), Break("save", 8),
    Break("on_step_end", 9, 1), Break("evaluation", 10), Break("step", 12), Break("on_train_end", 12, 1),
)  # fmt: skip
KILLED = (Break("second forward", 2), Break("evaluation", 4, 1), Break("step", 9))
#: What the others leave: the other hooks, and by a kill what was an exception, and the other way round.
REST_RAISED = (
    Break("on_step_begin", 2), Break("on_pre_optimizer_step", 3, 1), Break("on_substep_end", 4), Break("on_optimizer_step", 5, 1), Break("on_evaluate", 6), Break("on_save", 8, 1),
    Break("on_epoch_end", 9), Break("second forward", 11, 1), Break("on_epoch_end", 12),
)  # fmt: skip
REST_KILLED = (
    Break("forward", 1, 1), Break("step", 1), Break("on_log", 2, 1), Break("on_epoch_end", 3), Break("save", 4), Break("backward", 5, 1), Break("on_step_end", 6),
    Break("on_save", 8, 1), Break("on_evaluate", 10), Break("step", 12, 1), Break("on_epoch_end", 12), Break("on_train_end", 12),
)  # fmt: skip
SOME = (Break("forward", 2), Break("on_log", 3), Break("on_evaluate", 6, 1), Break("step", 8, 1))


def test_a_trainer_goes_on_as_if_nothing_had_been(daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(subjects.Kept, 2, daemon, tmp_path)
    equal(runs.through("raise", *RAISED) + runs.through("kill", *KILLED))


@pytest.mark.long
def test_the_suite_finds_what_is_not_done_again(daemon: Daemon, tmp_path: Path) -> None:
    """test_lightning.py has the control of the default tests."""
    control = suite(subjects.Kept, 2, daemon, tmp_path).through("raise", Break("evaluation", 4), Break("save", 8, 1), due=False)
    assert [row.differs != "" for row in control.rows] == [True, True], f"the suite finds nothing where nothing is done again:\n{control}"


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_at_every_other_place(world: int, daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(subjects.Kept, world, daemon, tmp_path)
    equal(runs.through("raise", *REST_RAISED) + runs.through("kill", *REST_KILLED))


@pytest.mark.long
@pytest.mark.parametrize("kind", [subjects.Draws, subjects.ByEpoch, subjects.ToStep, subjects.Adapters, subjects.Autocast, subjects.Streams], ids=lambda kind: kind.__name__)
def test_other_ways_to_train(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(kind, 2, daemon, tmp_path)
    equal(runs.through("raise", *SOME) + runs.through("kill", *SOME))


@pytest.mark.long
def test_a_checkpoint_of_its_own_and_which_wins(daemon: Daemon, tmp_path: Path) -> None:
    """A job that has nothing begins with the Trainer's checkpoint, as the Trainer does; one that has something goes on from that, and says so."""
    (tmp_path / "first").mkdir()
    first = Plain(tmp_path / "first")
    first.train()
    shutil.move(tmp_path / "first" / "saves" / "checkpoint-4", tmp_path / "checkpoint-4")
    said: list[str] = []
    runs = suite(subjects.FromCheckpoint, 1, daemon, tmp_path, said)
    plan = (Break("forward", 5), Break("on_log", 6), Break("step", 9))
    equal(runs.through("raise", *plan))
    assert "checkpoint-4') is of step 4, and the job has step 8 (own-ram): it goes on from that" in said[0]
    equal(runs.through("kill", *plan))
    assert "it goes on from that; another --job begins from the checkpoint" in said[1]


@pytest.mark.long
@pytest.mark.parametrize("name", ["Sft", "Dpo", "Grpo"])
def test_trl(name: str, daemon: Daemon, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl is missing: `make frameworks-test` has it")
    runs = suite(getattr(importlib.import_module("subject_trl"), name), 2, daemon, tmp_path)
    plan = (Break("forward", 2), Break("on_log", 4), Break("on_evaluate", 6, 1), Break("second forward", 7, 1), Break("step", 9))
    equal(runs.through("raise", *plan) + runs.through("kill", *plan))


# -- without a launcher -------------------------------------------------------------------------------------------------------


class Plain(subjects.Kept):
    """One that is not kept yet."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self._given = more
        run = Run(folder, 0, 1, "plain")
        super().__init__(run)
        self.lines = folder / "rank0"

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | self._given


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    return a, b


def test_alone_it_trains_as_it_did(folders: tuple[Path, Path]) -> None:
    plain = Plain(folders[0])
    plain.train()
    kept = Plain(folders[1])  # it seeds the generators, as the first did
    replicad.huggingface.keep(kept.trainer)
    kept.train()
    assert kept.lines.read_text() == plain.lines.read_text()
    assert not kept.session.enabled
    assert all(torch.equal(a, b) for a, b in zip(plain.trainer.model.parameters(), kept.trainer.model.parameters(), strict=True))


def test_alone_it_trains_a_second_time_as_it_did(folders: tuple[Path, Path]) -> None:
    """From the beginning, and from a checkpoint, which a session that is off would load once."""
    plain, kept = Plain(folders[0]), Plain(folders[1])
    replicad.huggingface.keep(kept.trainer)
    for each, folder in zip((plain, kept), folders, strict=True):
        torch.manual_seed(1)
        each.train()
        shutil.move(folder / "saves" / "checkpoint-4", folder / "checkpoint-4")
        each.train()
        each.trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    assert plain.lines.read_text().count('["step", 12,') == 3
    assert kept.lines.read_text() == plain.lines.read_text()
    assert all(torch.equal(a, b) for a, b in zip(plain.trainer.model.parameters(), kept.trainer.model.parameters(), strict=True))


def test_a_run_that_ended_before_it_trained_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was prepared for it is of groups that the next one does not have."""
    kept = Plain(tmp_path)
    trainer = replicad.huggingface.keep(kept.trainer)
    keeper = trainer.train.func.__self__
    with monkeypatch.context() as patch:
        patch.setattr(trainer.session, "resume", lambda **_: (_ for _ in ()).throw(Timeout("not yet")))
        with pytest.raises(Timeout):
            trainer.train()
    loaders: list[Any] = []
    run = keeper.original["_run_epoch"]
    keeper.original["_run_epoch"] = lambda **given: loaders.append((given["train_dataloader"] is keeper.loader, type(trainer.optimizer).__name__)) or run(**given)
    monkeypatch.setattr(trainer, "_run_epoch", functools.partial(keeper.run_epoch, keeper.original["_run_epoch"]))
    trainer.train()
    assert set(loaders) == {(True, "AcceleratedOptimizer")}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size begins training anew with other batches where memory runs out: set per_device_train_batch_size"),
        ({"ignore_data_skip": True}, "ignore_data_skip has each restart read the epoch from its beginning: leave it out"),
    ],
)
def test_refused_by_name(given: dict[str, Any], text: str, tmp_path: Path) -> None:
    trainer = Plain(tmp_path, **given).trainer
    before = dict(vars(trainer))
    with pytest.raises(Unsupported, match=text):
        replicad.huggingface.keep(trainer)
    assert vars(trainer) == before  # nothing is half patched


def test_what_makes_its_model_anew_is_refused(tmp_path: Path) -> None:
    kept = Plain(tmp_path)
    trainer = Trainer(model_init=kept.model, args=kept.trainer.args, eval_dataset=kept.trainer.eval_dataset)
    with pytest.raises(Unsupported, match="model_init makes another model in each train"):
        replicad.huggingface.keep(trainer)


def test_misuse(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"keep: want a transformers.Trainer, not torch.nn.modules.linear.Linear"):
        replicad.huggingface.keep(torch.nn.Linear(1, 1))
    trainer = replicad.huggingface.keep(Plain(tmp_path).trainer)
    with pytest.raises(SessionState, match="kept already"):
        replicad.huggingface.keep(trainer)
    with pytest.raises(Unsupported, match="a search trains many models under one session"):
        trainer.train(trial={})


def test_a_version_that_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "replicad.adapters.huggingface", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "4.57.1")
    with pytest.raises(Unsupported, match=r"transformers 4.57.1: want 5.20 to 5.x"):
        importlib.import_module("replicad.adapters.huggingface")


@pytest.mark.parametrize(("last", "stops"), [(12, True), (24, False)])
def test_a_program_that_trains_further_does_not_stop_where_the_one_before_it_did(last: int, stops: bool, tmp_path: Path) -> None:
    trainer = replicad.huggingface.keep(Plain(tmp_path).trainer)
    keeper = trainer.train.func.__self__
    trainer.state.max_steps = trainer.state.global_step = 12
    trainer.control.should_training_stop = True
    kept = keeper.state()
    trainer.state.max_steps = last
    keeper.load(kept)
    assert trainer.control.should_training_stop == stops


def test_a_resumed_session_is_given_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are the job's, and may be copied meanwhile."""
    trainer = replicad.huggingface.keep(Plain(tmp_path).trainer)
    keeper = trainer.train.func.__self__
    read: list[str] = []
    load = functools.partial(keeper.load_from_checkpoint, read.append)
    trainer.session.enabled = True  # as under a launcher
    load("first")
    trainer.session.resume()
    load("second")
    trainer.session.enabled = False
    load("third")
    assert read == ["first", "third"]
    assert trainer._load_from_checkpoint.func == keeper.load_from_checkpoint


def test_a_log_history_takes_the_same_room_on_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Room is made on all of them at one step; their clocks differ."""
    trainer = Plain(tmp_path).trainer
    histories = [huggingface._History(trainer) for _ in range(3)]
    sizes = []
    for history, seconds in zip(histories, (0.5, 0.0217, -2.2250738585072014e-308), strict=True):
        trainer.state.log_history = [{"loss": 2.5, "step": 1}, {"eval_runtime": seconds, "best": None, "text": "\u00e4", "of numpy": torch.tensor(seconds).numpy(), "step": 1}]
        sizes.append(len(text := history.text()))
        history.load(text)
        assert trainer.state.log_history[1]["eval_runtime"] == seconds
        assert history.text() == text
    assert len(set(sizes)) == 1, sizes
    monkeypatch.setattr(huggingface, "HISTORY", sizes[0])
    for step in (2, 3):
        trainer.state.log_history.append({"loss": 2.25, "step": step})
        assert len(histories[2].text()) <= sizes[0]
    histories[2].load(histories[2].text())
    assert [line["step"] for line in trainer.state.log_history] == [2, 3]
    assert [r.getMessage() for r in caplog.records if "log history" in r.getMessage()] == [
        "replicad: the Trainer's log history takes more than 0 MiB: from a restart on it lacks its oldest lines. The log itself has them; raise logging_steps to have all"
    ]


class Counts(TrainerCallback):
    def __init__(self) -> None:
        self.seen, self.name = 3, "x"


class Says(Counts):
    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def test_what_is_looked_at_by_the_names_that_a_program_gives(tmp_path: Path) -> None:
    """Callbacks that say what they have keep themselves; one that is added behind keep() is there, too."""
    trainer = Plain(tmp_path).trainer
    trainer.add_callback(Counts())
    replicad.huggingface.keep(trainer)
    trainer.add_callback(Says())
    trainer.add_callback(Counts())
    held = trainer.train.func.__self__.holders()
    assert list(held)[:2] == ["train_dataset", "data_collator"]
    assert {"Counts", "Counts.2", "trainer"} <= held.keys()
    assert "Says" not in held


# -- the example --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_example(daemon: Daemon, tmp_path: Path) -> None:
    """It is killed once it has logged."""
    program = (ROOT / "examples" / "frameworks" / "huggingface.py").read_text()
    alone = daemon.run(program, "--out", str(tmp_path / "alone"), world=2)
    last = sorted(line for line in alone.done().splitlines() if line.startswith("rank "))
    assert [line.split(", best")[0] for line in last] == ["rank 0 at step 20", "rank 1 at step 20"]
    assert all(line.endswith("noticed {}") for line in last)
    job = daemon.run(waiting(program, 8), "--out", str(tmp_path / "killed"), world=2)
    pid = int(job.until("rank 1: process").split("process ")[1].split()[0])
    job.until("'loss'")
    os.kill(pid, signal.SIGKILL)
    assert sorted(line for line in job.done().splitlines() if line.startswith("rank ")) == last
