"""Megatron-core's optimizers under their adapter, judged by replicad.testing.conformance, and what it refuses."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import types
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core", reason="megatron-core is missing: see python/requirements-megatron.txt")

import megatron.core
import torch.distributed as dist

import replicad
import subject_megatron as subjects
from conforming import equal, suite
from conftest import ROOT, Daemon
from oncpu import OnCPU
from replicad.adapters.megatron import Objects, _with
from replicad.errors import Invalid, Unsupported
from replicad.inprocess import MegatronCleanup
from replicad.testing.conformance import Break, Run, Suite

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:megatron.*")


def under(kind: type[subjects.Kept], world: int, daemon: Daemon, folder: Path) -> Suite:
    runs = suite(kind, world, daemon, folder)

    def launch(program: str, args: Sequence[str], world: int) -> None:
        daemon.run(program, *args, world=world, flags=kind.flags).done()

    runs._launch = launch
    return runs


KINDS = [subjects.Kept, subjects.Instances, subjects.Overlap, subjects.Half, subjects.Whole, subjects.Single, subjects.Fused]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_loop_goes_on_as_if_nothing_had_been(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    runs = under(kind, 2, daemon, tmp_path)
    equal(runs.through("kill", *kind.killed) + runs.through("raise", *kind.raised))


def test_state_that_nobody_makes_before_the_first_step(daemon: Daemon, tmp_path: Path) -> None:
    equal(under(subjects.Momentum, 2, daemon, tmp_path).through("kill", Break("backward", 1), Break("step", subjects.EVALUATE + 1)))


def test_weights_that_are_not_made_anew_are_found(daemon: Daemon, tmp_path: Path) -> None:
    control = under(subjects.Kept, 2, daemon, tmp_path).through("kill", Break("step", 7), due=False)
    assert not control.equal, f"the suite finds nothing where the weights are those of a fresh model:\n{control}"


def test_four_ranks_of_two_instances(daemon: Daemon, tmp_path: Path) -> None:
    equal(under(subjects.Four, 4, daemon, tmp_path).through("kill", *subjects.Four.killed))


@pytest.mark.skipif(subjects.DEVICE == "cpu", reason="no CUDA here: see docs/frameworks-megatron.md")
def test_on_a_device(daemon: Daemon, tmp_path: Path) -> None:
    runs = under(subjects.Kept, 1, daemon, tmp_path)
    equal(runs.through("kill", Break("backward", 3), Break("step", 7)) + runs.through("raise", Break("forward", 1), Break("second forward", 7)))


def test_intervals_that_nobody_says_are_said(daemon: Daemon) -> None:
    program = f"""
        import sys, types
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        import torch, replicad
        import torch.distributed as dist
        import subject_megatron as subjects
        from oncpu import OnCPU
        from replicad.testing.conformance import Run

        dist.init_process_group("gloo")
        with OnCPU():
            _, model, optimizer, scheduler = subjects.Kept(Run(Path(), 0, 1, "kill")).make()
            counters = types.SimpleNamespace(step=0, consumed_train_samples=0)  # as Megatron-Bridge has them
            session = replicad.megatron.keep(model, optimizer, scheduler, counters=counters, staging=True)
        session.leave()
        session.close()
    """
    said = daemon.run(program).done()
    assert said.count("nothing says at which iterations this program evaluates and saves") == 1, said


def test_shards_in_one_group_are_refused_with_the_flag(daemon: Daemon, tmp_path: Path) -> None:
    runs = under(subjects.Kept, 2, daemon, tmp_path)
    runs._launch = lambda program, args, world: daemon.run(program, *args, world=world).done()
    with pytest.raises(AssertionError, match=r"start the job with --groups 0,1, or with --groups auto"):
        runs._ran("kill", ())


@pytest.mark.skipif(subjects.DEVICE != "cpu", reason="two ranks with NCCL want two devices")
def test_the_example(daemon: Daemon) -> None:
    program = f"""
        import runpy, sys
        import torch
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from oncpu import OnCPU
        with OnCPU():
            runpy.run_path({str(ROOT / "examples" / "frameworks" / "megatron_core.py")!r}, run_name="__main__")
    """
    said = daemon.run(program, world=2, flags=subjects.Kept.flags).done()
    assert re.search(r"rank 0 at step 20 after 320 samples, loss \d\.\d+, noticed {}", said), said
    assert "nothing says at which iterations" not in said


# -- one process ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[subjects.Kept]:
    """A subject in a world of one, without a launcher."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with OnCPU():
            yield subjects.Kept(Run(tmp_path, 0, 1, "kill"))
    finally:
        MegatronCleanup()()
        dist.destroy_process_group()


def test_it_trains_alone_too(alone: subjects.Kept) -> None:
    alone.train()
    assert (alone.made.enabled, alone.made.at) == (False, subjects.ITERATIONS)
    alone.made.close()


def test_what_follows_is_named_between_optimizer_and_scheduler(alone: subjects.Kept) -> None:
    _, model, optimizer, scheduler = alone.make()
    with replicad.megatron.keep(model, optimizer, scheduler) as session:
        model(torch.randn(2, 8).bfloat16()).float().sum().backward()
        model.finish_grad_sync()
        assert optimizer.step()[0]
        session.follow("evaluate")
        scheduler.step(increment=4)
        assert (session.at, session.due) == (1, ("evaluate",))
        session.done("evaluate")


@pytest.mark.parametrize("of", ["counters", "args"])
def test_an_evaluation_or_a_save_may_take_long(of: str, alone: subjects.Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that stands still between two steps counts as one that hangs otherwise. Megatron evaluates and saves there, and tells nobody."""
    _, model, optimizer, scheduler = alone.make()
    counters, intervals = types.SimpleNamespace(iteration=0, consumed_train_samples=0), {"eval_interval": 2, "save_interval": None, "train_iters": 3}
    if of == "counters":
        vars(counters).update(intervals)
    else:
        monkeypatch.setitem(sys.modules, "megatron.training.global_vars", types.SimpleNamespace(_GLOBAL_ARGS=types.SimpleNamespace(**intervals)))
    seen: list[str] = []

    @contextlib.contextmanager
    def pause(most: float) -> Iterator[None]:
        seen.append(f"{most:.0f} s after {session.at}")
        yield
        seen.append("over")

    with replicad.megatron.keep(model, optimizer, scheduler, counters=counters, longest=7200) as session:
        session.pause = pause
        for _ in range(3):
            seen.append("iteration")
            model.zero_grad_buffer()
            optimizer.zero_grad()
            model(torch.randn(2, 8).bfloat16()).float().sum().backward()
            model.finish_grad_sync()
            optimizer.step()
            scheduler.step(increment=4)
    assert seen == ["iteration", "iteration", "7200 s after 2", "iteration", "over", "7200 s after 3"]


@pytest.mark.parametrize(("given", "names"), [(None, []), (1, ["data"]), ([1, 2], ["0", "1"]), ({"text": 1}, ["text"])])
def test_loaders_of_ones_own_are_kept_beside_the_counters(given: Any, names: list[str]) -> None:
    assert list(_with(3, given)) == [*names, "Megatron's counters"]


def test_a_checkpoint_of_megatrons_own_is_where_it_begins(alone: subjects.Kept) -> None:
    _, model, optimizer, scheduler = alone.make()
    counters = types.SimpleNamespace(step=7, consumed_train_samples=100)  # as Megatron-Bridge names them
    session = replicad.megatron.keep(model, optimizer, scheduler, counters=counters)
    assert (session.at, counters.step, counters.consumed_train_samples) == (7, 7, 100)
    session.close()


def test_what_tells_ranks_apart(alone: subjects.Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their place in the parallel model, and in what the optimizer is sharded over; where that is not known, all."""
    _, model, optimizer, scheduler = alone.make()
    objects = Objects(megatron.core, model, optimizer, scheduler, None)
    assert objects._share() == (0, 0, 0, 0, 0)
    for n, name in enumerate(("tensor_model_parallel", "pipeline_model_parallel", "expert_model_parallel", "expert_tensor_parallel")):
        monkeypatch.setattr(subjects.parallel_state, f"get_{name}_rank", lambda n=n: n + 1)
    assert objects._share() == (1, 2, 3, 4, 0)
    monkeypatch.setattr(subjects.parallel_state, "model_parallel_is_initialized", lambda: False)
    assert objects._share() == ("rank", 0)


class Refused(NamedTuple):
    """What is set before keep() is called, and what it says."""

    of: str
    name: str
    value: Any
    says: str


REFUSED = [
    Refused("optimizer", "use_precision_aware_optimizer", True, "use_precision_aware_optimizer: fp32 weights are inside of FusedAdam"),
    Refused("optimizer", "optimizer_cpu_offload", True, "optimizer_cpu_offload: parts of the optimizer are made anew"),
    Refused("optimizer", "optimizer_cuda_graph", True, "optimizer_cuda_graph: a graph replays"),
    Refused("ddp", "use_megatron_fsdp", True, "use_megatron_fsdp: its buffers"),
    Refused("ddp", "fp8_param_gather", True, "fp8_param_gather: weights in FP8"),
    Refused("ddp", "fp4_param_gather", True, "fp4_param_gather: weights in FP4"),
    Refused("ddp", "reuse_grad_buf_for_mxfp8_param_ag", True, "reuse_grad_buf_for_mxfp8_param_ag: weights in FP8"),
    Refused("model", "fp8", "hybrid", "fp8: TransformerEngine's scales"),
    Refused("model", "fp4", "e2m1", "fp4: TransformerEngine's scales"),
]


@pytest.mark.parametrize("what", REFUSED, ids=lambda r: r.name)
def test_what_is_refused_by_name(what: Refused, alone: subjects.Kept) -> None:
    _, model, optimizer, scheduler = alone.make()
    of = {"optimizer": optimizer.chained_optimizers[0].config, "ddp": model.ddp_config, "model": model.config}[what.of]
    object.__setattr__(of, what.name, what.value)
    with pytest.raises(Unsupported, match=what.says):
        replicad.megatron.keep(model, optimizer, scheduler)
    assert "step" not in vars(optimizer)  # nothing is patched


def test_an_unknown_optimizer_is_refused_by_name(alone: subjects.Kept) -> None:
    """Megatron's layer-wise optimizer is a chain of known ones that gathers weights by itself."""
    _, model, optimizer, scheduler = alone.make()
    optimizer.__class__ = type("LayerWiseDistributedOptimizer", (type(optimizer),), {})
    with pytest.raises(Unsupported, match="Megatron with LayerWiseDistributedOptimizer: known are ChainedOptimizer, DistributedOptimizer"):
        replicad.megatron.keep(model, optimizer, scheduler)


def test_bad_calls(alone: subjects.Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    _, model, optimizer, scheduler = alone.make()
    with pytest.raises(Invalid, match="derived= is what"):
        replicad.megatron.keep(model, optimizer, scheduler, derived={})
    subjects.batches.destroy_num_microbatches_calculator()
    with pytest.raises(Invalid, match="call init_num_microbatches_calculator"):
        replicad.megatron.keep(model, optimizer, scheduler, counters=types.SimpleNamespace(iteration=0, consumed_train_samples=0))
    monkeypatch.setattr("megatron.core.__version__", "0.14.0")
    with pytest.raises(Unsupported, match=r"megatron-core 0\.14\.0: want 0\.16 to 0\.19\.x"):
        replicad.megatron.keep(model, optimizer, scheduler)


@pytest.mark.parametrize("kind", [subjects.Kept, subjects.Overlap], ids=lambda kind: kind.__name__)
def test_a_run_that_has_ended_leaves_nothing(kind: type[subjects.Kept], alone: subjects.Kept) -> None:
    """What HyperPod cuts by hand (main_grad, main_param, hooks, modules that are loaded anew) goes with the model, once the cache of RoPE is empty."""
    subject = kind(alone.run)
    subject.run.kept = False
    subject.train()
    net, model, inner = subject.parts[0], subject.model, subject.parts[1]
    p = next(net.parameters())
    gone = {
        "model": weakref.ref(model), "network": weakref.ref(net), "rope": weakref.ref(net.rope), "parameter": weakref.ref(p), "main_grad": weakref.ref(p.main_grad),
        "main_param": weakref.ref(p.main_param), "weights": weakref.ref(model.buffers[0].param_data), "optimizer": weakref.ref(inner),
    }  # fmt: skip
    del net, model, inner, p
    subject.parts = subject.model = None
    gc.collect()
    assert gone["rope"]() is not None, "the cache holds nothing: this test can't fail"
    MegatronCleanup()()
    gc.collect()
    assert [name for name, ref in gone.items() if ref() is not None] == []
    held = [(m, k) for m in [m for m in sys.modules if m.startswith("megatron.")] for k, v in vars(sys.modules[m]).items() if isinstance(v, dist.ProcessGroup)]
    assert held == []


def test_gradients_go_while_a_session_holds_the_model(alone: subjects.Kept) -> None:
    net, model, *_ = alone.make()
    weights = {k: v.clone() for k, v in net.state_dict().items()}
    assert all(p.main_grad.untyped_storage().nbytes() for p in net.parameters())
    MegatronCleanup()()
    assert not any(p.main_grad.untyped_storage().nbytes() for p in net.parameters())
    assert all(torch.equal(v, weights[k]) for k, v in net.state_dict().items())
    assert model.buffers[0].param_data.untyped_storage().nbytes()
