"""What follows ``fit()`` and ``train()`` belongs to the job: saves, tests and predictions are done again by whom a fault has cost them, and no step is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from conftest import ROOT, Daemon, imports

#: Rank 1 is killed at ``WHERE``, once; ``raise`` is an error of the program there, each time.
FIRST = """
import torch
import atexit, logging, os, signal, sys
import replicad

WHERE, HOW, FLAG = sys.argv[1:4]
RANK = replicad.place()[0]
sys.path.insert(0, {tests!r})

def at(place):
    if place != WHERE or RANK != 1:
        return
    if HOW == "raise":
        raise ValueError("no room for the report")
    try:
        open(FLAG, "x").close()
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def say(*what):
    print("DID", RANK, *what, flush=True)
"""

LIGHTNING = (
    FIRST
    + """
import lightning.pytorch as pl
import subject_lightning as subjects
from pathlib import Path
from replicad.testing.conformance import Run

class Net(subjects.Network):
    def training_step(self, batch, i):
        say("step", self.trainer.global_step + 1)
        return super().training_step(batch, i)
    def test_step(self, batch, i):
        if i == 1:
            at("test")
        self.log("test_loss", torch.nn.functional.cross_entropy(self(batch[0]), batch[1]), sync_dist=True)

pl.seed_everything(1, verbose=False)
out = Path(FLAG).parent
net = Net(Run(out, RANK, 2, "kill"))
keep = replicad.lightning.Keep()
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, callbacks=[keep], **quiet)
held_out = torch.utils.data.DataLoader(subjects.data(24, 3), 4)
trainer.fit(net, torch.utils.data.DataLoader(subjects.data(24, 2), 4, shuffle=True), held_out)
at("behind")
say("fit", trainer.global_step, keep.session.at)
loss = trainer.test(net, held_out, verbose=False)[0]["test_loss"]
trainer.save_checkpoint(out / "model.ckpt")
at("end")
if RANK == 1:
    atexit.register(at, "exit")
say("END", loss, keep.session.noticed)
"""
)

HUGGINGFACE = (
    FIRST
    + """
import subject_huggingface as subjects
import transformers
from pathlib import Path
from transformers import Trainer, TrainingArguments

class Says(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        say("step", state.global_step)
    def on_evaluate(self, args, state, control, **_):
        say("evaluated at", state.global_step)
    def on_prediction_step(self, args, state, control, **_):
        if behind:
            at("test")

behind = False
torch.manual_seed(1)
out = Path(FLAG).parent
model = subjects.GPT2LMHeadModel(subjects.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(output_dir=str(out / "saves"), use_cpu=True, seed=1, num_train_epochs=2, per_device_train_batch_size=1, save_strategy="no", report_to=[],
                              eval_strategy="epoch", disable_tqdm=True, dataloader_pin_memory=False, logging_steps=1)
trainer = replicad.huggingface.keep(Trainer(model=model, args=arguments, train_dataset=subjects.dataset(6, 2), eval_dataset=subjects.dataset(4, 3), callbacks=[Says()]))
result = trainer.train()
behind = True
at("behind")
say("fit", trainer.state.global_step, trainer.session.at)
trainer.save_model(out / "model")
trainer.log_metrics("train", result.metrics)
trainer.save_state()
loss = trainer.evaluate()["eval_loss"]
at("end")
if RANK == 1:
    atexit.register(at, "exit")
say("END", loss, round(result.training_loss, 9), trainer.session.noticed)
"""
)

PROGRAMS = {"lightning": LIGHTNING, "huggingface": HUGGINGFACE}


def program(name: str) -> str:
    return PROGRAMS[name].replace("{tests!r}", repr(str(ROOT / "python" / "tests")))


def ran(name: str, daemon: Daemon, *args: str) -> str:
    """All that a job has printed, which must end well. Its lives fork from a process that has imported the framework."""
    first = imports(ROOT / "python" / "tests" / f"subject_{name}.py")
    job = daemon.run(program(name), *args, world=2, imports=first)
    assert job.wait() == 0, str(job.out)
    return job.printed()


def did(text: str, what: str) -> list[str]:
    """The lines of both ranks."""
    return sorted(line[4:] for line in text.splitlines() if line.startswith("DID") and line.split()[2] == what)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_follows_is_done_again_and_no_step(name: str, daemon: Daemon, tmp_path: Path) -> None:
    text = ran(name, daemon, "test", "kill", str(tmp_path / "flag"))
    assert (tmp_path / "flag").exists()
    assert [len(did(text, "step")), len(set(did(text, "END")))] == [12, 2]
    assert list(tmp_path.glob("model*"))
    assert "failed when the job had finished" not in text


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_wherever_it_is_lost(name: str, daemon: Daemon, tmp_path: Path) -> None:
    whole = ran(name, daemon, "nowhere", "kill", str(tmp_path / "never"))
    assert [len(did(whole, what)) for what in ("step", "fit", "END")] == [12, 2, 2]
    for where in ("behind", "test", "end", "exit"):
        folder = tmp_path / where
        folder.mkdir()
        text = ran(name, daemon, where, "kill", str(folder / "flag"))
        assert (folder / "flag").exists()
        assert did(text, "step") == did(whole, "step")
        assert sorted(set(did(text, "END"))) == did(whole, "END")
        assert list(folder.glob("model*"))
        assert "failed when the job had finished" not in text


def test_an_error_there_is_said_with_its_place(daemon: Daemon, tmp_path: Path) -> None:
    """It is the program's, each time: the job is given up after as many recoveries as for one in a step."""
    job = daemon.run(ENDS, "raise")
    job.until("rank 0: the same exception at step ")
    assert "behind the last step, 3: ValueError: no room for the report" in job.printed()
    daemon.verb("job", "end", job.name, "--dev")
    job.wait()


ENDS = """
import torch
import atexit, os, sys
import replicad
from replicad._core import behind
from replicad.errors import SessionState

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model=model, optimizer=optimizer)
for step in range(session.resume() + 1, 4):
    print("STEP", step, flush=True)
    model(torch.ones(2, 4)).square().sum().backward()
    with session.step():
        optimizer.step()
behind.stays(session)
if sys.argv[1:] == ["raise"]:
    raise ValueError("no room for the report")
paused, pause = [], session.rank.pause
session.rank.pause = lambda most: (paused.append(most), pause(most))
with session.pause(5):
    model.eval()
    model(torch.randn(2, 4))
model.train()
optimizer.step()
model(torch.randn(2, 4))
try:
    with session.step():
        pass
except SessionState as err:
    print("REFUSED", err, flush=True)
print("BEHIND", session.committed, paused == [5, behind.MOST], session.noticed, flush=True)
if sys.argv[1:] == ["close"]:
    session.close()
    print("LEFT", session.life.left, flush=True)
elif sys.argv[1:] == ["leave"]:
    session.leave()
atexit.register(lambda: print("EXIT", session.life.left, flush=True))
"""


@pytest.mark.parametrize("how", ["", "close", "leave"])
def test_a_session_stays_until_its_program_ends(how: str, run: Callable[..., str]) -> None:
    """Or leaves by name. What the program does meanwhile with weights and generators is in no copy, and needs none."""
    text = run(ENDS, *([how] if how else []))
    assert "BEHIND 3 True {}" in text
    assert "REFUSED a step after the last one" in text
    assert f"EXIT {how != ''}" in text
    assert "without session.leave()" not in text


# -- several fits in a program ------------------------------------------------------------------------------------------------

SWEEP = """
import torch
import os, signal, sys
import lightning.pytorch as pl
import replicad
import subject_lightning as subjects
from pathlib import Path
from replicad.testing.conformance import Run

STEP, FLAG, HOW = int(sys.argv[1]), sys.argv[2], sys.argv[3]
RANK, WORLD = replicad.place()

class Rate(subjects.Network):
    def __init__(self, run, rate, width):
        super().__init__(run)
        self.rate = rate
        self.body = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(width, 4))
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.body.parameters(), lr=self.rate, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
    def training_step(self, batch, i):
        global made
        made += 1
        print("DID", RANK, "step", trial, self.trainer.global_step + 1, flush=True)
        if made == STEP and RANK == WORLD - 1 and not os.path.exists(FLAG):
            open(FLAG, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, i)

made = 0
pl.seed_everything(1, verbose=False)
quiet = dict(enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1)
run = Run(Path(FLAG).parent, RANK, WORLD, "kill")
rates = [(0.1, 16), (0.01, 16 if HOW != "shapes" else 12), (0.2, 16)]
results = []
for trial, (rate, width) in enumerate(rates):
    keeps = [] if HOW == "plain" else [replicad.lightning.Keep()]
    net = Rate(run, rate, width)
    logger = pl.loggers.CSVLogger(Path(FLAG).parent, name="logs")
    trainer = pl.Trainer(accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto", max_epochs=2, callbacks=keeps, logger=logger, **quiet)
    trainer.fit(net, torch.utils.data.DataLoader(subjects.data(12 * WORLD, 2), 4, shuffle=True), torch.utils.data.DataLoader(subjects.data(8, 3), 4))
    metrics = [round(float(trainer.callback_metrics[name]), 6) for name in ("val_loss", "loss_epoch")]
    results.append((rate, trainer.global_step, trainer.current_epoch, metrics))
    if HOW == "uses" and trial == 0:
        trainer.validate(net, torch.utils.data.DataLoader(subjects.data(8, 3), 4), verbose=False)
print("DID", RANK, "END", results, sum(p.double().sum().item() for p in net.parameters()), [k.session.noticed for k in keeps], flush=True)
"""


TWICE = """
import torch
import os, signal, sys
import replicad
import subject_huggingface as subjects
import transformers
from pathlib import Path
from transformers import Trainer, TrainingArguments

STEP, FLAG, HOW = int(sys.argv[1]), sys.argv[2], sys.argv[3]
RANK, WORLD = replicad.place()

class Says(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        global made
        made += 1
        print("DID", RANK, "step", trial, state.global_step + 1, flush=True)
        if made == STEP and RANK == WORLD - 1 and not os.path.exists(FLAG):
            open(FLAG, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)

made, results = 0, []
for trial, rate in enumerate((0.01, 0.001)):
    torch.manual_seed(trial)
    model = subjects.GPT2LMHeadModel(subjects.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1 + trial, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(output_dir=str(Path(FLAG).parent / f"saves{trial}"), use_cpu=True, seed=1, num_train_epochs=2, per_device_train_batch_size=1, report_to=[],
                                  learning_rate=rate, save_strategy="no", eval_strategy="epoch", disable_tqdm=True, dataloader_pin_memory=False, logging_steps=1)
    trainer = Trainer(model=model, args=arguments, train_dataset=subjects.dataset(3 * WORLD, 2), eval_dataset=subjects.dataset(4, 3), callbacks=[Says()])
    trainer = replicad.huggingface.keep(trainer)
    result = trainer.train()
    loss = [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line][-1]
    results.append((rate, trainer.state.global_step, round(loss, 6), round(result.training_loss, 6)))
    if HOW == "uses" and trial == 0:
        trainer.save_model(Path(FLAG).parent / "model")
print("DID", RANK, "END", results, sum(p.double().sum().item() for p in model.parameters()), trainer.session.noticed, flush=True)
"""


def swept(daemon: Daemon, folder: Path, step: int, how: str = "", world: int = 1, name: str = "lightning", job: str = "") -> str:
    """All that a sweep has printed, of trials of six steps each, the last rank of which is killed when it makes this one."""
    folder.mkdir(exist_ok=True)
    file = ROOT / "python" / "tests" / f"subject_{name}.py"
    text = {"lightning": SWEEP, "huggingface": TWICE}[name].replace("import subject_", f"sys.path.insert(0, {str(file.parent)!r})\nimport subject_")
    run = daemon.run(text, str(step), str(folder / "flag"), how, world=world, name=job, imports=imports(file))
    assert (run.wait() == 0) == (how != "uses"), str(run.out)
    assert (folder / "flag").exists() == (step > 0)
    return run.printed()


def rows(folder: Path) -> list[list[str]]:
    """The rows of each trial's log."""
    return [sorted(file.read_text().splitlines()) for file in sorted(folder.glob("logs/*/metrics.csv"))]


def test_a_sweep_is_one_job(daemon: Daemon, tmp_path: Path) -> None:
    """A process that comes again goes through the trials that are over, with their metrics, and goes on in the one that is under way."""
    whole = swept(daemon, tmp_path / "whole", 0, "shapes")
    text = swept(daemon, tmp_path / "killed", 10, "shapes")
    assert did(text, "END") == did(whole, "END")
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert [len([x for x in did(text, "step") if x.split()[2] == trial]) for trial in "02"] == [6, 6]  # of the second one some were not committed


def test_a_second_trainer_of_hugging_face(daemon: Daemon, tmp_path: Path) -> None:
    whole = swept(daemon, tmp_path / "whole", 0, name="huggingface")
    text = swept(daemon, tmp_path / "killed", 9, name="huggingface")
    assert did(text, "END") == did(whole, "END")
    assert len([x for x in did(text, "step") if x.split()[2] == "0"]) == 6


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_several_trainings_of_two_ranks(name: str, daemon: Daemon, tmp_path: Path) -> None:
    """Lost in the first step of the second one, and in the last one."""
    whole = swept(daemon, tmp_path / "whole", 0, world=2, name=name)
    for step in (7, 12):
        text = swept(daemon, tmp_path / f"killed{step}", step, world=2, name=name)
        assert did(text, "END") == did(whole, "END")


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_computed_with_weights_that_are_gone_is_an_error(name: str, daemon: Daemon, tmp_path: Path) -> None:
    """The first process that meets it ends the launcher, as each one would, and the job is kept for the program once it is mended."""
    folder, job = tmp_path / "killed", f"uses-{name}"
    text = swept(daemon, folder, 8, "uses", name=name, job=job)
    assert text.count("Mismatch: ") == 1
    assert "the fit of this module was over when this process began" in text
    assert f"Job {job} is kept in memory at step " in text
    assert len(did(swept(daemon, folder, 8, name=name, job=job), "END")) == 1
