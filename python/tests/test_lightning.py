"""Lightning's Trainer under its adapter, judged by replicad.testing.conformance; Fabric; refusals, and what they do without a launcher."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.strategies import FSDPStrategy, SingleDeviceStrategy
from torch.utils.data import DataLoader, IterableDataset

import replicad
import subject_lightning as subjects
from conforming import equal, suite, waiting
from conftest import PATIENCE, ROOT, Daemon, environment
from replicad.errors import Invalid, SessionState, Unsupported
from replicad.testing.conformance import Break, Run, Suite

#: What Lightning says of its own: of torch's, and of tests that are small.
pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in (".*LeafSpec:FutureWarning", ".*:UserWarning:lightning.*", ".*isinstance.treespec:FutureWarning")]

#: A step each. An epoch has three of them, of 2, 2 and 1 micro-batches; behind the first two there is a validation, with a save if it is the best so far.
RAISED = (
    Break("forward", 1), Break("save", 2, 1), Break("second forward", 4, 1), Break("on_validation_end", 5), Break("on_train_epoch_end", 6, 1), Break("step", 8),
    Break("on_train_batch_end", 9, 1), Break("on_train_end", 12),
)  # fmt: skip
KILLED = (Break("evaluation", 5),)  # of the rank that writes the log
#: What the others leave: the other hooks, and by a kill what was an exception, and the other way round.
REST_RAISED = (
    Break("step", 1, 1), Break("evaluation", 2), Break("on_train_batch_end", 3, 1), Break("backward", 4), Break("on_before_optimizer_step", 5, 1),
    Break("on_train_epoch_start", 7), Break("on_train_batch_start", 8, 1), Break("on_before_zero_grad", 9), Break("on_train_epoch_end", 12, 1),
)  # fmt: skip
REST_KILLED = (
    Break("forward", 1, 1), Break("step", 1), Break("save", 2), Break("second forward", 2, 1), Break("on_train_epoch_end", 3), Break("on_train_epoch_start", 4, 1),
    Break("backward", 5), Break("on_train_epoch_end", 6), Break("on_train_batch_end", 7), Break("on_validation_end", 8, 1), Break("step", 9, 1), Break("on_train_epoch_end", 12),
    Break("on_train_end", 12, 1),
)  # fmt: skip


def sharded(runs: Suite, daemon: Daemon, flags: tuple[str, ...]) -> None:
    """The launcher's flags of a subject."""

    def launch(program: str, args: Sequence[str], world: int) -> None:
        daemon.run(program, *args, world=world, flags=flags).done()

    if flags:
        runs._launch = launch


def test_a_trainer_goes_on_as_if_nothing_had_been(daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(subjects.Kept, 2, daemon, tmp_path)
    equal(runs.through("raise", *RAISED) + runs.through("kill", *KILLED))
    control = runs.through("raise", Break("on_validation_end", 4), due=False)
    assert not control.equal, f"the suite finds nothing where nothing is done again:\n{control}"


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_at_every_other_place(world: int, daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(subjects.Kept, world, daemon, tmp_path)
    equal(runs.through("raise", *REST_RAISED) + runs.through("kill", *REST_KILLED))


KINDS = [
    subjects.Epochs, subjects.Manual, subjects.Averaged, subjects.Scaled, subjects.Sharded, subjects.Combined, subjects.Ours, subjects.Streamed, subjects.Lora,
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_other_ways_to_train(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(kind, 2, daemon, tmp_path)
    sharded(runs, daemon, kind.flags)
    equal(runs.through("raise", *kind.raised) + runs.through("kill", *kind.killed))


# -- a checkpoint of the program's own ------------------------------------------------------------------------------------------

FROM_A_CHECKPOINT = """
import torch
import os, signal, sys
import lightning.pytorch as pl
import replicad
sys.path.insert(0, {tests!r})
import subject_lightning as subjects
from replicad.testing.conformance import Run
from pathlib import Path

class Kills(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if sys.argv[1] == "killed" and trainer.global_step == 8:
            try:
                open({flag!r}, "x").close()
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

run = Run(Path({folder!r}), 0, 1, "kill")
subject = subjects.Kept(run)
keep = replicad.lightning.Keep(**(dict(enabled=False) if sys.argv[1] == "alone" else dict()))
trainer = pl.Trainer(accelerator="cpu", max_epochs=4, callbacks=[keep, Kills()], logger=False, enable_checkpointing=False, enable_progress_bar=False, **subject.arguments())
trainer.fit(subject.network, subject.loader, subject.held_out, ckpt_path={checkpoint!r}, weights_only=False)
print("END", keep.session.at, trainer.global_step, sum(p.double().sum().item() for p in subject.network.parameters()), flush=True)
"""


def two_epochs(folder: Path, checkpoint: str) -> None:
    """Six steps, without replicad."""
    first = subjects.Kept(Run(folder, 0, 1, "plain"))
    trainer = pl.Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, **first.arguments())
    trainer.fit(first.network, first.loader, first.held_out)
    trainer.save_checkpoint(folder / checkpoint)


@pytest.mark.long
def test_a_checkpoint_is_where_a_job_without_a_state_begins(daemon: Daemon, tmp_path: Path) -> None:
    two_epochs(tmp_path, "two.ckpt")
    names = {"tests": str(ROOT / "python" / "tests"), "folder": str(tmp_path), "flag": str(tmp_path / "flag"), "checkpoint": str(tmp_path / "two.ckpt")}
    program = FROM_A_CHECKPOINT.format(**names)
    file = tmp_path / "alone.py"
    file.write_text(program)
    alone = subprocess.run([sys.executable, str(file), "alone"], env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    said = daemon.run(program, "killed").done()
    alone, killed = ([line.split()[1:] for line in text.splitlines() if line.startswith("END")] for text in (alone, said))
    assert [words[:2] for words in killed] == [["12", "12"]]
    assert killed == alone
    assert "goes before ckpt_path" in said
    assert (tmp_path / "flag").exists()


@pytest.mark.long
def test_a_block_that_is_run_again_does_not_load_the_checkpoint_again(daemon: Daemon, tmp_path: Path) -> None:
    """It would be put into what the session has, which may be copied meanwhile, and with other tensors in the optimizer."""
    two_epochs(tmp_path, "six.ckpt")
    runs = suite(subjects.FromCheckpoint, 1, daemon, tmp_path)
    plan = (Break("forward", 9), Break("step", 11))
    equal(runs.through("raise", *plan))


# -- Fabric ---------------------------------------------------------------------------------------------------------------------

FABRIC = """
import torch
import os, signal, sys
import lightning as L
import replicad
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
fabric = L.Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
fabric.seed_everything(1, verbose=False)
samples = TensorDataset(torch.randn(40, 8), torch.randint(4, (40,)))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
loader = fabric.setup_dataloaders(DataLoader(samples, 4, shuffle=True))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 3)
session = replicad.lightning.keep(fabric, model, optimizer, loader, scheduler)
session.resume()
for epoch in range(loader.epoch, 3):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        if sys.argv[1:] and session.at == 7 and fabric.global_rank == 1 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
    scheduler.step()
session.leave()
weights = sum(p.double().sum().item() for p in model.state_dict().values())
print("END", fabric.global_rank, session.at, loader.epoch, weights, optimizer.param_groups[0]["lr"], session.noticed, flush=True)
session.close()
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_fabric(daemon: Daemon, tmp_path: Path) -> None:
    whole = sorted(line for line in daemon.run(FABRIC, world=2).done().splitlines() if line.startswith("END"))
    killed = sorted(line for line in daemon.run(FABRIC, str(tmp_path / "flag"), world=2).done().splitlines() if line.startswith("END"))
    assert (tmp_path / "flag").exists()
    assert [line.split()[1:4] for line in whole] == [["0", "15", "3"], ["1", "15", "3"]]
    assert killed == whole


def test_fabric_refuses_what_was_not_set_up() -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    with pytest.raises(Invalid, match=r"keep: Linear is not what fabric.setup\(\) or fabric.setup_dataloaders\(\) returned"):
        replicad.lightning.keep(fabric, torch.nn.Linear(1, 1))


def test_fabric_refuses_a_second_step_with_one_batch() -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Linear(2, 1)
    model, one, other = fabric.setup(model, *(torch.optim.SGD([p], lr=0.1) for p in model.parameters()))
    loader = fabric.setup_dataloaders(DataLoader(torch.ones(6, 2), 2))
    session = replicad.lightning.keep(fabric, model, one, other, loader, enabled=False)
    session.resume()
    for batch in loader:
        fabric.backward(model(batch).sum())
        one.step()
    assert session.at == 3
    with pytest.raises(SessionState, match=r"SGD.step\(\) is the second step with one batch.*put both updates into one `with session.step\(\):`"):
        other.step()
    with session.step():
        one.step()
        other.step()
    assert session.at == 4


# -- without a launcher -----------------------------------------------------------------------------------------------------------


class Alone(subjects.Kept):
    def keeper(self) -> Any:
        return replicad.lightning.Keep(enabled=False)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    return a, b


def test_alone_it_trains_as_it_did(folders: tuple[Path, Path]) -> None:
    plain = subjects.Kept(Run(folders[0], 0, 1, "plain"))
    plain.train()
    kept = Alone(Run(folders[1], 0, 1, "kill"))  # which seeds again
    kept.train()
    assert (folders[1] / "rank0").read_text() == (folders[0] / "rank0").read_text()
    assert not kept.session.enabled
    assert kept.session.at == kept.trainer.global_step == 12
    assert all(torch.equal(a, b) for a, b in zip(plain.network.parameters(), kept.network.parameters(), strict=True))
    patched = [name for obj in (kept.trainer.fit_loop, kept.trainer.fit_loop.epoch_loop, kept.trainer.precision_plugin) for name, v in vars(obj).items() if callable(v)]
    assert patched == []
    kept.session.enabled = True  # as under a launcher
    with pytest.raises(SessionState, match=r"a fit after session.leave\(\), by which this job has ended"):
        kept.train()


def test_alone_it_fits_a_second_time_as_it_did(folders: tuple[Path, Path]) -> None:
    plain = subjects.Kept(Run(folders[0], 0, 1, "plain"))
    fits(plain)
    kept = Alone(Run(folders[1], 0, 1, "kill"))
    fits(kept)
    assert (folders[0] / "rank0").read_text().count('\n["end", 24') == 1
    assert (folders[1] / "rank0").read_text() == (folders[0] / "rank0").read_text()
    assert all(torch.equal(a, b) for a, b in zip(plain.network.parameters(), kept.network.parameters(), strict=True))


def fits(subject: subjects.Kept) -> None:
    """Twice, the second time further."""
    subject.train()
    subject.trainer.should_stop = False
    subject.trainer.fit_loop.max_epochs *= 2
    subject.trainer.fit(subject.network, subject.loader, subject.held_out)


def fit(tmp_path: Path, loader: Any = None, module: type[pl.LightningModule] = subjects.Network, callbacks: Sequence[pl.Callback] = (), **given: Any) -> None:
    subject = subjects.Kept(Run(tmp_path, 0, 1, "plain"))
    keep = replicad.lightning.Keep(enabled=False)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=[keep, *callbacks], **quiet, **given)
    trainer.fit(module(subject.run), subject.loader if loader is None else loader, subject.held_out)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(subjects.data(8, 1))


class Strange(SingleDeviceStrategy):
    pass


class Beside(subjects.Adversaries):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        down, _ = self.optimizers(use_pl_optimizer=False)
        self.manual_backward(self(batch[0]).sum())
        down.step()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"callbacks": [LearningRateFinder()]}, r"LearningRateFinder \(Trainer.tune, Tuner\) trains before the training"),
        ({"callbacks": [StochasticWeightAveraging(0.1)]}, "StochasticWeightAveraging has its weights in its own state_dict.*: use WeightAveraging"),
        ({"loader": DataLoader(Stream(), 2)}, "a DataLoader of Stream, an IterableDataset: a restart can't find its place in it: give torchdata's StatefulDataLoader"),
        ({"loader": [torch.zeros(2, 8)]}, "a Tensor as a training loader has no place"),
        ({"loader": range(3)}, "a range as a training loader has no place that a restart could go to: give a torch DataLoader"),
    ],
)
def test_refused_by_name(given: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=text):
        fit(tmp_path, **given)


def test_an_update_beside_lightning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SessionState, match=r"AdamW.step\(\) beside Lightning: .*Step what self.optimizers\(\) returns, in training_step"):
        fit(tmp_path, module=Beside)


def test_the_first_fsdp_is_refused() -> None:
    from replicad.adapters.lightning import _refused

    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer._accelerator_connector.strategy = FSDPStrategy()  # which Lightning itself refuses on a CPU
    assert _refused(trainer) == "FSDPStrategy (FSDP 1) runs on a GPU alone, and was never run under this: use ModelParallelStrategy(), which is FSDP2"


def test_what_the_trainer_says_is_not_said_again() -> None:
    with pytest.raises(Invalid, match=r"Keep\(model=...\): the Trainer says which that is: leave it out"):
        replicad.lightning.Keep(model=torch.nn.Linear(1, 1))


def test_a_version_that_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "replicad.adapters.lightning", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "2.4.0")
    with pytest.raises(Unsupported, match=r"lightning 2.4.0: want 2.6 to 2.x"):
        importlib.import_module("replicad.adapters.lightning")


class Saves(pl.Callback):
    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        checkpoint["mine"] = 1


def test_what_only_a_checkpoint_has_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(tmp_path, callbacks=[Saves()])
    said = [r.getMessage() for r in caplog.records if "would lack" in r.getMessage()]
    assert said == ["replicad: a restart would lack what Saves.on_save_checkpoint saves: give it to Keep(extra={'name': object}), with state_dict and load_state_dict"]


# -- the example ------------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_example(daemon: Daemon, tmp_path: Path) -> None:
    """It is killed once it was validated."""
    program = (ROOT / "examples" / "frameworks" / "lightning_ddp.py").read_text()
    alone = daemon.run(program, "--out", str(tmp_path / "alone"), world=2)
    last = sorted(line for line in alone.done().splitlines() if line.startswith("rank "))
    assert [line.split(", best")[0] for line in last] == ["rank 0 at step 28", "rank 1 at step 28"]
    assert all(line.endswith("noticed {}") for line in last)
    job = daemon.run(waiting(program, 9), "--out", str(tmp_path / "killed"), world=2)
    pid = int(job.until("rank 1: process").split("process ")[1].split()[0])
    job.until("validated after step 7")
    os.kill(pid, signal.SIGKILL)
    assert sorted(line for line in job.done().splitlines() if line.startswith("rank ")) == last
