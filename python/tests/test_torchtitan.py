"""torchtitan's Trainer under its adapter, judged by replicad.testing.conformance."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchtitan", reason="torchtitan is missing: see python/requirements-deepspeed.txt")

import tyro

import subject_torchtitan as subjects
from conforming import equal
from conftest import ROOT, Daemon, environment
from replicad._core.capsule import pack, unpack
from replicad.adapters.torchtitan import Checkpoint, _Feed
from replicad.errors import Mismatch, Unsupported
from replicad.testing.conformance import Break, Suite

CheckpointManager = subjects.CheckpointManager

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital.:UserWarning")  # of torchdata, by torch

#: A step each, or two places of one step by two ranks. Behind each second step there is a validation, behind each third a save.
KILLED = (Break("forward", 1), Break("log", 3, 1), Break("step", 5), Break("save", 6, 1), Break("validated", 8))
#: What these leave, in the same order of a step.
REST = (
    Break("step", 1, 1), Break("second forward", 2), Break("save", 3), Break("validation", 4, 1), Break("backward", 5), Break("log", 6),
    Break("forward", 7, 1), Break("save", 8),
)  # fmt: skip


def suite(kind: type[subjects.Kept], world: int, daemon: Daemon, folder: Path) -> Suite:
    def launch(program: str, args: Sequence[str], world: int) -> None:
        daemon.run(program, *args, world=world, flags=kind.flags).done()

    return Suite(kind, world=world, folder=folder, launch=launch, env=environment(OMP_NUM_THREADS="1"))


def test_a_trainer_goes_on_as_if_nothing_had_been(daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(subjects.Kept, 2, daemon, tmp_path)
    equal(runs.through("kill", *KILLED))
    control = runs.through("kill", Break("validated", 4), due=False)
    assert not control.equal, f"the suite finds nothing where nothing is done again:\n{control}"


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_at_every_other_place(world: int, daemon: Daemon, tmp_path: Path) -> None:
    equal(suite(subjects.Kept, world, daemon, tmp_path).through("kill", *REST))


@pytest.mark.long
@pytest.mark.parametrize("kind", [subjects.Replicated, subjects.Workers], ids=lambda kind: kind.__name__)
def test_other_ways_to_train(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    equal(suite(kind, 2, daemon, tmp_path).through("kill", *KILLED))


@pytest.mark.long
def test_a_job_without_a_state_begins_where_the_manager_on_disk_does(daemon: Daemon, tmp_path: Path) -> None:
    """What Off leaves on disk at step 3 is what both runs of From begin with. Off is kept by nobody, and trains as without replicad."""
    off = suite(subjects.Off, 2, daemon, tmp_path)
    plain = suite(subjects.Kept, 2, daemon, tmp_path).plain
    assert [(rank[0].events, rank[0].digests) for rank in off.plain] == [(rank[0].events, rank[0].digests) for rank in plain]
    runs = suite(subjects.From, 2, daemon, tmp_path)
    equal(runs.through("kill", Break("log", 5), Break("step", 7, 1)))
    assert runs.plain[0][0].events[0][:2] == ["log", 4]


# -- without a job --------------------------------------------------------------------------------------------------------


def test_what_the_trainer_asks_is_what_the_inner_manager_says() -> None:
    inner = CheckpointManager.Config(enable=True, interval=10, keep_latest_k=3)
    config = Checkpoint.Config(inner=inner)
    assert (config.enable, config.interval, config.keep_latest_k, config.load_step) == (True, 10, 3, -1)
    given = tyro.cli(Checkpoint.Config, default=config, args=["--inner.interval", "20", "--longest", "60"])
    assert (given.interval, given.inner.interval, given.longest) == (20, 20, 60.0)
    with pytest.raises((ValueError, SystemExit)):
        tyro.cli(Checkpoint.Config, default=config, args=["--interval", "20"])
    for more in ({"interval": 20}, {"folder": "/elsewhere"}, {"exclude_from_loading": ["dataloader"]}):
        (name,) = more
        with pytest.raises(ValueError, match=f"checkpoint.{name}=.*say checkpoint.inner.{name}="):
            Checkpoint.Config(inner=inner, **more)


def test_the_example_is_a_configuration_that_torchtitan_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtitan.config import ConfigManager

    monkeypatch.syspath_prepend(str(ROOT / "examples" / "frameworks"))
    config = ConfigManager().parse_args(["--module", "with_torchtitan", "--config", "debugmodel", "--checkpoint.inner.keep_latest_k", "4"])
    assert isinstance(config.checkpoint, Checkpoint.Config)
    assert (config.checkpoint.interval, config.checkpoint.keep_latest_k, config.checkpoint.inner.enable) == (500, 4, True)
    del sys.modules["with_torchtitan"]


def test_a_loader_is_asked_without_drawing_and_without_pickle() -> None:
    loader = subjects.Loader(subjects.Loader.Config(), dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=4, local_batch_size=2)
    feed, asked = _Feed(loader), []
    before = torch.get_rng_state()
    assert feed.state_dict() == {} and torch.equal(before, torch.get_rng_state())
    feed.before_a_batch(asked.append)
    batches = iter(feed)
    first = next(batches)
    state = copy.deepcopy(feed.state_dict())  # the session packs it at once
    assert asked == [feed] and not any(isinstance(v, bytes) for v in flat(state))
    second = next(batches)
    feed.load_state_dict(state)
    again = next(iter(feed))
    assert torch.equal(again[1], second[1]) and not torch.equal(again[1], first[1])
    with pytest.raises(Unsupported, match="a loader with a generator of its own"):
        _Feed(torch.utils.data.DataLoader([1], generator=torch.Generator()))


def test_a_long_document_is_kept_as_tensors() -> None:
    """As lists of numbers it would take more than a session has room for, on one rank alone."""
    loader = subjects.Loader(subjects.Loader.Config(), dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=4, local_batch_size=2)
    loader.dataset._tail = list(range(150_000, 250_000))
    feed = _Feed(loader, 1 << 20)
    batches = iter(feed)
    next(batches)
    state = unpack(pack(feed.state_dict()))
    assert len(pack(state)) < 500_000
    second = next(batches)
    feed.load_state_dict(state)
    assert torch.equal(next(iter(feed))[1], second[1])
    with pytest.raises(Mismatch, match=r"has room for 1000: .* a new one with checkpoint\.room="):
        _Feed(loader, 1000).state_dict()


def test_what_is_not_such_a_trainer_is_refused() -> None:
    class Other:
        step = 0

    manager = Checkpoint.Config().build(dataloader=None, model_parts=[], optimizers=[], lr_schedulers=None, states={"train_state": Other()}, sd_adapter=None)
    with pytest.raises(Unsupported, match="Other has no batch_generator"):
        manager.load()
    assert manager.save(1) is False
    manager.close()


def flat(tree: Any) -> list[Any]:
    return [x for v in tree.values() for x in flat(v)] if isinstance(tree, dict) else [tree]
