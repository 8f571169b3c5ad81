"""check_trainer passes a trainer whose checkpoint is whole, and names what another one forgets, and since when."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import checked
import cluster
from conftest import ROOT, environment
from replicad import testing
from replicad.testing import conformance, recorder, trainee, trainer
from replicad.testing.check import Program
from replicad.testing.trainer import Line


class Here:
    """Runs in this process, which begins each with other generators, as a new one has them."""

    def __init__(self, folder: Path, forgets: str) -> None:
        self.folder, self.forgets, self.runs = folder, forgets, 0

    def __call__(self, save: int = -1, resume: str = "") -> list[list[Line]]:
        self.runs += 1
        trainee.seed(self.runs if resume or self.forgets == "any order" else 0)
        lines: list[Line] = []

        def write(name: str, step: int, values: dict[str, str]) -> None:
            lines.append((name, step, values))

        made = checked.Plain(self.folder)
        made.forgets = self.forgets
        record = recorder.Recorder(made, write)
        if resume:
            record.resumes(save)
        elif save > 0:
            record.saves(save, self.folder / "checkpoint", lambda path: write("saved", save, {"path": str(path)}))
        with record.watching():
            made.train(record, Path(resume) if resume else None)
        return [[*lines, ("end", 0, {})]]


def test_a_whole_checkpoint_passes(tmp_path: Path) -> None:
    report = trainer.judged(Here(tmp_path, ""), 5)
    assert report.equal, str(report)
    assert (report.steps, report.saved_at) == (9, 5)
    assert report.parts == ["forwards", "samples", "generator python", "generator numpy", "generator cpu", "loss", "weights", "optimizer", "scheduler", "scaler", "ema"]
    assert "| weights | yes | |" in str(report)


@pytest.mark.parametrize(
    ("forgets", "at", "first"),
    [
        ("ema", 5, "step 5, after the load: ema: 4 of 4, first [0]. The checkpoint has no ema"),
        ("scheduler", 5, "step 5, after the load: scheduler: "),
        ("scaler", 5, "step 5, after the load: scaler: "),
        ("optimizer", 5, "step 5, after the load: optimizer: "),
        ("cpu", 5, "step 6: generator cpu: from forward 1 on; loss: "),
        ("python", 5, "step 6: samples: from forward 1 on; generator python: "),
        ("sampler", 5, "step 7: samples: from forward 1 on; loss: "),
        ("place", 5, "step 6: samples: from forward 1 on; loss: "),
        ("micro", 3, "step 4: forwards: 2 for 1; samples: "),
        ("order", 5, "step 6: samples: "),
        ("steps", 5, "step 1: step: in one go it does not come there. The count of steps goes on elsewhere"),
        ("nothing", 4, "step 4: evaluation: it is missing. What was to follow the step is not done again"),
    ],
)
def test_what_is_forgotten_is_named_where_it_begins(forgets: str, at: int, first: str, tmp_path: Path) -> None:
    report = trainer.judged(Here(tmp_path, forgets), at)
    assert not report.equal
    assert report.first.startswith(first), str(report)
    assert f"| {report.differs[0].part} | NO | step {report.differs[0].step}, " in str(report)


def test_a_trainer_that_differs_by_itself_is_said_first(tmp_path: Path) -> None:
    report = trainer.judged(Here(tmp_path, "any order"))
    assert not report.equal
    assert str(report).startswith("Two runs that nobody interrupted differ, so that nothing can be said of a resume: first in step 1: ")
    assert "Seed every generator in make_trainer" in str(report)


def test_a_save_that_changes_the_run_is_said_first(tmp_path: Path) -> None:
    report = trainer.judged(Here(tmp_path, "a save that draws"), 5)
    assert not report.equal
    assert str(report).startswith(
        "Saving a checkpoint changes the run, so that nothing can be said of a resume: a run that saved after step 5 differs from one that did not, first in step 6: "
    )


def test_what_a_step_may_be(tmp_path: Path) -> None:
    for at, text in ((9, "at=9: want a step before the last, which is 9"), (20, "at=20: want")):
        with pytest.raises(ValueError, match=text):
            trainer.judged(Here(tmp_path, ""), at)
    with pytest.raises(ValueError, match="made 0 steps: want at least 2"):
        trainer.judged(lambda *_: [[("end", 0, {})]])
    record = recorder.Recorder(checked.Plain(tmp_path), lambda *_: None)
    record.step(3)
    with pytest.raises(ValueError, match=r"record.step\(3\) after record.step\(3\)"):
        record.step(3)
    with pytest.raises(ValueError, match="world=0, at=None: want at least 1"):
        testing.check_trainer(checked.make, world=0)


@pytest.mark.parametrize("other", [True, False], ids=["another rank writes", "nobody writes"])
def test_a_checkpoint_is_looked_for_once_all_ranks_have_saved(other: bool, tmp_path: Path) -> None:
    """One rank writes, as a rule, and it may come last."""
    trainer, file = checked.Plain(tmp_path), tmp_path / "checkpoint"
    trainer.save = lambda path: None
    record = recorder.Recorder(trainer, lambda *_: None)
    record.saves(1, file, lambda path: path.touch() if other else None)
    with contextlib.nullcontext() if other else pytest.raises(ValueError, match="has written nothing there"):
        record.step(1)


def test_objects_without_a_value_are_no_difference(tmp_path: Path) -> None:
    """Their text has an address in it."""
    lines = []
    record = recorder.Recorder(checked.Plain(tmp_path), lambda *line: lines.append(line))
    for _ in range(2):
        record.event("log", 1, thing=object(), many=[1, {"x": object()}])
    assert lines[0] == lines[1]
    assert lines[0][2] == {"thing|": "'object'", "many|[0]": "1", "many|[1].x": "'object'"}


def test_one_process_saves_and_another_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that nobody interrupts is one of this process."""
    monkeypatch.setattr(trainer, "PROGRAM", "import quick\n" + trainer.PROGRAM)
    runs = trainer._Runs(tmp_path, Program.of("check_trainer", checked.make, ["ema"]), 1, cluster.PATIENCE)
    here = Here(tmp_path, "")
    report = trainer.judged(lambda save=-1, resume="": here() if save < 0 else runs.train(save, resume), 5)
    assert report.first.startswith("step 5, after the load: ema: 4 of 4, first [0]. The checkpoint has no ema"), str(report)
    assert (here.runs, runs._number) == (1, 2)


@pytest.mark.long
@pytest.mark.parametrize("session", [False, None])
def test_in_processes_and_with_a_session(session: bool | None) -> None:
    """The session is exact, and the plain checkpoint forgets the generators."""
    report = testing.check_trainer(checked.kept, session=session, program=str(cluster.REPLICAD), timeout=cluster.PATIENCE)
    assert report.first.startswith("step 5: generator cpu: from forward 1 on; loss: "), str(report)
    assert [d.part for d in report.differs] == ["generator cpu", "loss", "weights", "optimizer"]
    assert not report.equal
    if session is False:
        assert report.no_session == "not run: session=False"
        return
    assert report.session is not None
    assert report.session.equal, str(report)
    assert [r.fault for r in report.session.rows] == ["forward 2", "step 4", "after 6"]


@pytest.mark.long
def test_several_ranks_and_no_session() -> None:
    report = testing.check_trainer(checked.make, at=5, world=2, program=str(cluster.REPLICAD), timeout=cluster.PATIENCE, arguments=["ema"])
    assert report.first.startswith("step 5, after the load: ema"), str(report)
    assert report.no_session == "not run: the trainer has no session"


def test_what_is_no_trainer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"other returned torch.nn.modules.linear.Linear, which has no save, state: want an object with train\(record, resume\), save\(path\) and state"
    ):
        recorder.made(checked, "other", tmp_path)


def test_a_run_that_does_not_end() -> None:
    with pytest.raises(RuntimeError, match=r"the plain run has not ended after 1 s. It printed so far:\n"):
        conformance.ranks("import signal\nsignal.pause()", [], 2, dict(os.environ), 1.0)


#: What frameworks' own checkpoints of the middle of an epoch forget.
FINDS = {
    "lightning": {
        "samples": "NO \\| step 8, in the step: from forward 1 on",
        "generator cpu": "NO \\| step 8, in the step: from forward 1 on",
        "scheduler": "yes",
        "evaluation": "NO \\| step 7, evaluation: it is missing",
    },
    "huggingface": {
        "samples": "NO \\| step 8, in the step: from forward 1 on",
        "generator cpu": "NO \\| step 8, in the step: from forward 1 on",
        "scheduler": "yes",
        "loops": "yes",
    },
}


@pytest.mark.long
@pytest.mark.parametrize("framework", ["lightning", "huggingface"])
def test_the_examples(framework: str, tmp_path: Path) -> None:
    """What docs/testing.md says that they find."""
    env = environment(REPLICAD=str(cluster.REPLICAD))
    example = [sys.executable, str(ROOT / "examples" / "frameworks" / f"check_{framework}.py")]
    done = subprocess.run(example, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=3 * cluster.PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    for part, found in FINDS[framework].items():
        assert re.search(rf"^\| {part} \| {found}", done.stdout, re.M), f"{part}:\n{done.stdout}"
    assert len(re.findall(r"\| kill \| yes \|$", done.stdout, re.M)) == 3, done.stdout


def test_a_program_without_a_guard_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes load it, and would call the check again."""
    monkeypatch.setattr(trainee, "running", True)
    with pytest.raises(RuntimeError, match=r"check_trainer is called by a process of check_trainer.*put the call under `if __name__"):
        testing.check_trainer(checked.make)
