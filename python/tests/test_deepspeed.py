"""DeepSpeed's engine under its adapter, judged by replicad.testing.conformance; its refusals, what it does without a launcher, and what killed builds leave."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed", reason="deepspeed is missing: `make frameworks-test` has it")

import deepspeed
import torch.distributed as dist
from deepspeed.ops.adam import FusedAdam
from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler

import replicad
import subject_deepspeed as subjects
from conforming import equal, suite, waiting
from conftest import ROOT, Daemon
from replicad.errors import Invalid, SessionState, Unsupported
from replicad.testing.conformance import Break, Run

AUTO = ("--groups", "auto", "--collective-window")
#: A step each. An update has two micro-batches; every second one is evaluated.
KILLED = (Break("forward", 1), Break("second forward", 2, 1), Break("backward", 3), Break("evaluation", 4, 1), Break("step", 6), Break("log", 7, 1), Break("log", 8))
SOME = (Break("second forward", 3, 1), Break("step", 5), Break("evaluation", 6, 1))


@pytest.mark.parametrize("kind", [subjects.Zero0, subjects.Zero1, subjects.Zero2, subjects.Zero3], ids=lambda kind: kind.__name__)
def test_an_engine_goes_on_as_if_nothing_had_been(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    equal(suite(kind, 2, daemon, tmp_path, flags=AUTO).through("kill", *KILLED))


@pytest.mark.long
@pytest.mark.parametrize("kind", [subjects.Whole1, subjects.Whole2, subjects.Whole3], ids=lambda kind: kind.__name__)
def test_of_three_ranks(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    equal(suite(kind, 3, daemon, tmp_path, flags=AUTO).through("kill", *SOME))


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [subjects.Copied, subjects.Accumulates, subjects.Frozen, subjects.Offloads, subjects.Offloads3, subjects.Unmanaged], ids=lambda kind: kind.__name__
)
def test_other_ways_to_train(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    equal(suite(kind, 2, daemon, tmp_path, flags=AUTO).through("kill", *SOME))


@pytest.mark.long
@pytest.mark.parametrize(("first", "kind"), [(subjects.Saves2, subjects.FromCheckpoint2), (subjects.Saves3, subjects.FromCheckpoint3)], ids=lambda kind: kind.__name__)
def test_a_checkpoint_of_its_own(first: type[subjects.Kept], kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    """A job that has nothing begins with DeepSpeed's checkpoint."""
    assert suite(first, 2, daemon, tmp_path).plain
    runs = suite(kind, 2, daemon, tmp_path, flags=AUTO)
    equal(runs.through("kill", Break("second forward", 4, 1), Break("save", 4), Break("step", 6)))


def test_weights_that_nobody_makes_anew_are_found(daemon: Daemon, tmp_path: Path) -> None:
    report = suite(subjects.Stale, 2, daemon, tmp_path, flags=AUTO).through("kill", Break("second forward", 3, 1))
    assert not report.equal, f"the suite finds nothing where the weights stay what they were:\n{report}"


@pytest.mark.parametrize("kind", [subjects.Zero1, subjects.Zero2, subjects.Zero3], ids=lambda kind: kind.__name__)
def test_a_fault_in_the_process_is_borne_by_new_processes(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    """DeepSpeed holds process groups in its engine, its optimizer and its modules, and a restart takes them down."""
    said: list[str] = []
    equal(suite(kind, 2, daemon, tmp_path, said, AUTO).through("raise", Break("second forward", 3, 1), Break("step", 5)))
    assert "hold process groups that were taken down when the block ended, and take no others. This process ends, and a new one takes its place" in said[0]


RESUMES = """
import torch, deepspeed, replicad
import torch.distributed as dist
keep = replicad.deepspeed.keep
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)
engine = keep(engine)
engine.session.resume()
engine.backward(engine(torch.ones(4, 4)).sum())
try:
    engine.session.resume()
except replicad.StaleProgram as err:
    print("refused:", err)
engine.session.leave()
"""


def test_gradients_of_a_step_that_was_broken_off_are_in_no_other(daemon: Daemon) -> None:
    """A fault that the program catches leaves the process group, if there is one rank, and the engine with what it had added up."""
    out = daemon.run(RESUMES, flags=AUTO).done()
    assert "refused: resume: DeepSpeed's engine has gradients of the step that was broken off, which the next one would count again" in out


# -- without a launcher -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """A process group of one, as DeepSpeed wants one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def plain(kind: type[subjects.Kept], folder: Path) -> subjects.Kept:
    """One that is not kept yet."""
    folder.mkdir(exist_ok=True)
    return kind(Run(folder, 0, 1, "plain"))


@pytest.mark.parametrize("kind", [subjects.Zero0, subjects.Zero2, subjects.Frozen], ids=lambda kind: kind.__name__)
def test_alone_it_trains_as_it_did(kind: type[subjects.Kept], group: None, tmp_path: Path) -> None:
    one, two = plain(kind, tmp_path / "a"), plain(kind, tmp_path / "b")
    replicad.deepspeed.keep(two.engine, data=two.loader)
    two.session.resume()
    for each in (one, two):
        torch.manual_seed(1)
        each.train()
    assert (tmp_path / "a" / "rank0").read_text() == (tmp_path / "b" / "rank0").read_text()
    assert not two.session.enabled
    assert two.session.at == subjects.STEPS
    assert all(torch.equal(a, b) for a, b in zip(one.base.state, two.base.state, strict=True))


def test_a_loss_scale_is_kept_whoever_has_it(group: None, tmp_path: Path) -> None:
    """DeepSpeed has float16 on a device alone. A checkpoint that is loaded puts another scaler there."""
    optimizer = plain(subjects.Zero2, tmp_path).engine.optimizer
    make = functools.partial(CreateLossScaler, torch.half, 1.0, True, {"init_scale": 2**16, "scale_window": 2, "min_scale": 1, "delayed_shift": 2, "consecutive_hysteresis": False})
    optimizer.loss_scaler = make()
    kept = replicad.adapters.deepspeed._Scaler(optimizer)
    for overflow in (True, True, False):
        optimizer.loss_scaler.update_scale(overflow)
    state, was = kept.state_dict(), vars(optimizer.loss_scaler)
    assert state == {"cur_scale": 2.0**15, "cur_iter": 3, "last_overflow_iter": 1, "cur_hysteresis": 1}
    optimizer.loss_scaler = make()
    kept.load_state_dict(state)
    assert vars(optimizer.loss_scaler) == was


class Fused(subjects.Zero2):
    def makes(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return FusedAdam(parameters, lr=0.01)


def test_an_optimizer_that_hides_state_in_its_process_is_named(group: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("deepspeed.ops.adam.fused_adam.FusedAdamBuilder", lambda: SimpleNamespace(load=lambda: SimpleNamespace(multi_tensor_adam=None)))  # which takes a minute
    replicad.deepspeed.keep(plain(subjects.Zero2, tmp_path / "a").engine)
    assert not [r for r in caplog.records if "powers of beta" in r.getMessage()]
    replicad.deepspeed.keep(plain(Fused, tmp_path / "b").engine)
    (text,) = [r.getMessage() for r in caplog.records if "powers of beta" in r.getMessage()]
    assert text.startswith(
        "replicad: FusedAdam keeps powers of beta in its process, where no copy has them: on a CPU a resumed run differs from an undisturbed one in last digits."
    )


# -- refused ------------------------------------------------------------------------------------------------------------------


def offloads(engine: Any, part: str, device: str) -> None:
    """As if it had been made so: to NVMe takes a device of its kind."""
    setattr(engine._config.zero_config, part, {"device": device})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda e: offloads(e, "offload_optimizer", "nvme"), "offload to NVMe: what lies in files has no memory to copy: leave device='nvme' out"),
        (lambda e: offloads(e, "offload_param", "nvme"), "offload to NVMe"),
        (lambda e: offloads(e, "offload_param", "cpu"), "offload_param: weights that come from the host for each layer were never tried: leave it out"),
        (lambda e: setattr(e, "has_moe_layers", True), "experts of a mixture have partitions over other groups of ranks"),
        (lambda e: setattr(e, "mp_world_size", 2), "tensor parallelism: ranks with other weights have partitions over other groups"),
        (lambda e: setattr(e._config.zero_config, "zero_hpz_partition_size", 2), "zero_hpz_partition_size: a second partition of the weights would be stale after a load"),
        (lambda e: setattr(e._config.zero_config, "zero_quantized_weights", True), "quantized weights do not follow from the partitions alone"),
        (lambda e: setattr(e.optimizer, "muon_momentum_buffer_partitioned_groups_flat", {}), "save_muon_momentum_buffer_in_memory: ZeRO 3 has Muon's momentum outside"),
        (lambda e: setattr(e, "training_dataloader", [1]), r"the loader of deepspeed.initialize\(training_data=\) has no place to keep: read with replicad.data.Loader"),
        (lambda e: setattr(e, "optimizer", None), "an engine without an optimizer trains nothing"),
        (lambda e: setattr(e, "optimizer", torch.optim.SGD(e.module.parameters())), "SGD was never tried: use ZeRO of stage 1 to 3"),
    ],
)  # fmt: skip
def test_refused_by_name(change: Callable[[Any], None], text: str, group: None, tmp_path: Path) -> None:
    engine = plain(subjects.Zero3, tmp_path).engine
    zero = engine.optimizer
    change(engine)
    before, of_zero = dict(vars(engine)), set(vars(zero))
    with pytest.raises(Unsupported, match=f"keep: {text}"):
        replicad.deepspeed.keep(engine)
    assert vars(engine) == before  # nothing is half patched
    assert set(vars(zero)) == of_zero


class Muon(subjects.Zero3):
    config: Mapping[str, Any] = {
        "optimizer": {"type": "Muon", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 3, "reduce_scatter": False, "save_muon_momentum_buffer_in_memory": True},
    }

    def makes(self, parameters: list[torch.nn.Parameter]) -> None:
        """DeepSpeed does, by the configuration."""


@pytest.mark.long  # DeepSpeed makes a kernel for it
def test_a_momentum_outside_of_the_optimizer_is_refused(group: None, tmp_path: Path) -> None:
    engine = plain(Muon, tmp_path).engine
    with pytest.raises(Unsupported, match=r"keep: save_muon_momentum_buffer_in_memory: ZeRO 3 has Muon's momentum outside of the optimizer's state"):
        replicad.deepspeed.keep(engine)


def test_a_pipeline_is_refused(group: None) -> None:
    layers = deepspeed.pipe.PipelineModule([torch.nn.Linear(4, 4)], num_stages=1, loss_fn=torch.nn.functional.mse_loss)
    engine, *_ = deepspeed.initialize(model=layers, optimizer=torch.optim.SGD(layers.parameters()), config={"train_micro_batch_size_per_gpu": 1})
    with pytest.raises(Unsupported, match=r"keep: a PipelineEngine has a schedule of its own.*train with ZeRO, without pipeline"):
        replicad.deepspeed.keep(engine)


def test_misuse(group: None, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"keep: want the engine of deepspeed.initialize\(\), not torch.nn.modules.linear.Linear"):
        replicad.deepspeed.keep(torch.nn.Linear(1, 1))
    engine = replicad.deepspeed.keep(plain(subjects.Zero1, tmp_path).engine)
    with pytest.raises(SessionState, match="kept already"):
        replicad.deepspeed.keep(engine)


@pytest.mark.parametrize(("package", "version", "text"), [("deepspeed", "0.18.2", "deepspeed 0.18.2: want 0.19 to 0.19.x"), ("torch", "2.9.1", "torch 2.9.1: want 2.15 to 2.x")])
def test_a_version_that_was_not_tested(package: str, version: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.delitem(sys.modules, "replicad.adapters.deepspeed", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda name: version if name == package else real(name))
    with pytest.raises(Unsupported, match=text):
        importlib.import_module("replicad.adapters.deepspeed")


# -- the example --------------------------------------------------------------------------------------------------------------


EXAMPLE = ROOT / "examples" / "frameworks" / "with_deepspeed.py"


def test_groups_that_nobody_asked_for(daemon: Daemon) -> None:
    job = daemon.run(EXAMPLE.read_text(), world=2)
    assert job.wait() != 0
    assert "hold different parts of optim.param.0.0: start the job with --groups 0,1, or with --groups auto" in job.printed()


@pytest.mark.long
def test_the_example(daemon: Daemon) -> None:
    """It is killed once it has logged."""
    program = EXAMPLE.read_text()
    last = sorted(line for line in daemon.run(program, world=2, flags=AUTO).done().splitlines() if line.startswith("rank "))
    assert [line.split(", loss")[0] for line in last] == ["rank 0 at step 20", "rank 1 at step 20"]
    assert all(line.endswith("noticed {}") for line in last)
    job = daemon.run(waiting(program, 12), world=2, flags=AUTO)
    (pid,) = re.findall(r"process (\d+)", job.until("rank 1: process "))[:1]
    job.until("step 10: loss")
    os.kill(int(pid), signal.SIGKILL)
    assert sorted(line for line in job.done().splitlines() if line.startswith("rank ") and "at step" in line) == last
