"""A loop of accelerate under its adapter, judged by replicad.testing.conformance; its refusals, and what it does without a launcher."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

import replicad
import subject_accelerate as subjects
from conforming import equal, suite
from conftest import PATIENCE, ROOT, Daemon, environment
from replicad import Invalid, Mismatch, SessionState, Unsupported
from replicad._torch.memory import Memory
from replicad._torch.objects import Objects
from replicad._torch.staging import Staging
from replicad._torch.trained import Trained
from replicad.adapters.accelerate import Place
from replicad.data import Loader
from replicad.testing.conformance import Break

#: A step each. An epoch has three of them, of 2, 2 and 1 micro-batches; behind every fourth and at the end of each epoch there is an evaluation.
RAISED = (
    Break("forward", 2), Break("second forward", 4, 1), Break("evaluation", 5), Break("epoch end", 6, 1), Break("forward", 7), Break("log", 8), Break("step", 9, 1),
    Break("forward", 10), Break("evaluation", 12, 1),
)  # fmt: skip
KILLED = (Break("second forward", 2), Break("evaluation", 5, 1), Break("forward", 7, 1))
#: What the others leave.
REST_RAISED = (
    Break("forward", 1), Break("log", 2, 1), Break("backward", 4), Break("step", 5, 1), Break("evaluation", 6), Break("second forward", 8), Break("evaluation", 9, 1),
    Break("step", 10), Break("epoch end", 12),
)  # fmt: skip
REST_KILLED = (
    Break("forward", 1, 1), Break("log", 2), Break("epoch end", 3, 1), Break("second forward", 5), Break("backward", 6, 1), Break("log", 7), Break("step", 8),
    Break("evaluation", 9), Break("forward", 10, 1), Break("step", 12),
)  # fmt: skip


def test_a_loop_goes_on_as_if_nothing_had_been(daemon: Daemon, tmp_path: Path) -> None:
    """The first forward of an epoch is behind an evaluation."""
    runs = suite(subjects.Kept, 2, daemon, tmp_path)
    equal(runs.through("raise", *RAISED) + runs.through("kill", *KILLED))


@pytest.mark.long
def test_the_suite_finds_what_is_not_done_again(daemon: Daemon, tmp_path: Path) -> None:
    """test_lightning.py has the control of the default tests."""
    control = suite(subjects.Kept, 2, daemon, tmp_path).through("raise", Break("evaluation", 5), due=False)
    assert [row.differs != "" for row in control.rows] == [True], f"the suite finds nothing where nothing is done again:\n{control}"


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_at_every_other_place(world: int, daemon: Daemon, tmp_path: Path) -> None:
    runs = suite(subjects.Kept, world, daemon, tmp_path)
    equal(runs.through("raise", *REST_RAISED) + runs.through("kill", *REST_KILLED))


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Items(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((2,), float(i))


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class Meter:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def test_what_can_not_be_kept_is_refused(accelerator: Accelerator) -> None:
    prepare = replicad.accelerate.prepare
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Items(), 2)
    for o in (model, optimizer, loader, torch.optim.lr_scheduler.StepLR(optimizer, 3), 3):
        with pytest.raises(Invalid, match=f"{type(o).__name__} is not what accelerator.prepare"):
            prepare(accelerator, o, enabled=False)
    for loader, text in (
        (torch.utils.data.DataLoader(Stream(), 2), "an IterableDataset"),
        (torch.utils.data.DataLoader(Items(), batch_size=None), "batch_size=None"),
    ):
        with pytest.raises(Unsupported, match=text + ".*replicad.data.Loader"):
            prepare(accelerator, accelerator.prepare(loader), enabled=False)
    prepare(accelerator, accelerator.prepare(model), Loader(Items(), 2), enabled=False)
    with pytest.raises(Invalid, match=r"register_for_checkpointing\(Meter\) after replicad.accelerate.prepare"):
        accelerator.register_for_checkpointing(Meter())


def test_a_session_that_was_made_before_names_prepare(accelerator: Accelerator) -> None:
    """On the CPU accelerate has all of a model moved to "cpu:0" where there are several ranks, and an optimizer's state loaded anew in any case."""
    with_buffers, model = torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    moved: list[tuple[dict[str, Any], Callable[[], object]]] = [
        ({"model": with_buffers}, lambda: with_buffers.to("cpu:0")),
        ({"model": model}, lambda: model.to("cpu:0")),
        ({"model": model, "optimizer": optimizer}, lambda: accelerator.prepare(optimizer)),
    ]
    for given, move in moved:
        objects = Objects(given, lambda name: False, False)
        trained = Trained(objects, Memory(Staging(objects.leaves, False, {})))
        move()
        with pytest.raises(Mismatch, match=r"call replicad.accelerate.prepare\(...\) after it"):
            trained.check_places()


def test_the_same_loop_alone(accelerator: Accelerator) -> None:
    """The session is off: steps are counted where accelerate updates."""
    accelerator.gradient_accumulation_steps = 3
    model = torch.nn.Linear(2, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(Items(), 2, shuffle=True))
    with replicad.accelerate.prepare(accelerator, model, optimizer, loader, enabled=False) as session:
        session.resume()
        at = []
        for epoch in range(loader.iteration, 2):
            for x in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(x).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                at.append((epoch, session.at))
    assert at == [(0, 0), (0, 0), (0, 1), (0, 2), (1, 2), (1, 2), (1, 3), (1, 4)]


def test_an_iterator_that_a_resume_has_outlived_moves_nothing(accelerator: Accelerator) -> None:
    """A loop that stays in the process makes its next iterator, and drops the one before by that."""
    loader = accelerator.prepare(torch.utils.data.DataLoader(Items(), 2))
    place = Place(loader)
    it = iter(loader)
    given = [next(it) for _ in range(3)]
    state = place.state_dict()
    assert (len(given), state["used"]) == (3, 3)
    place.load_state_dict(state)
    with pytest.raises(SessionState, match=r"begun before session.resume\(\): .*iterate it anew"):
        next(it)
    place.load_state_dict(state)
    it = iter(loader)
    assert next(it)[:, 0].tolist() == [6, 7]
    left = iter(loader)  # as it is left by a loop that breaks off
    next(left)
    del left
    assert place.state_dict()["used"] == 0


def test_batches_are_numbered_through_the_epoch(accelerator: Accelerator) -> None:
    loader = accelerator.prepare(torch.utils.data.DataLoader(Items(), 2))
    place = Place(loader)
    given = []
    for i, _ in loader.numbered():
        given.append((i, place.used))
        if i == 2:
            break
    assert given == [(0, 1), (1, 2), (2, 3)]
    it = loader.numbered()
    for _ in range(2):
        next(it)
    state = place.state_dict()
    again = accelerator.prepare(torch.utils.data.DataLoader(Items(), 2))
    there = Place(again)
    there.load_state_dict(state)
    rest = [(i, x[:, 0].tolist()) for i, x in again.numbered()]
    assert rest[0] == (2, [4, 5])
    assert [i for i, _ in rest] == list(range(2, len(again)))
    assert [i for i, _ in again.numbered()] == list(range(len(again)))


def test_an_iterator_that_is_dropped_behind_a_resume_moves_nothing(accelerator: Accelerator) -> None:
    loader = accelerator.prepare(torch.utils.data.DataLoader(Items(), 2))
    place = Place(loader)
    it = iter(loader)
    given = [next(it) for _ in range(3)]
    place.load_state_dict(place.state_dict())
    it = iter(loader)
    assert len(given) == 3
    assert next(it)[:, 0].tolist() == [6, 7]


def test_two_updates_with_one_batch_are_one_step(accelerator: Accelerator) -> None:
    """A restart between them would go on with the next batch."""
    model = torch.nn.Linear(2, 1)
    one, other = (torch.optim.SGD([p], lr=0.1) for p in model.parameters())
    model, one, other, loader = accelerator.prepare(model, one, other, torch.utils.data.DataLoader(Items(), 2))
    with replicad.accelerate.prepare(accelerator, model, one, other, loader, enabled=False) as session:
        session.resume()
        for batch in loader:
            accelerator.backward(model(batch).sum())
            with session.step():
                one.step()
                other.step()
        assert session.at == 4
        for batch in loader:
            accelerator.backward(model(batch).sum())
            one.step()
        assert session.at == 8
        before = model.bias.item()
        with pytest.raises(SessionState, match=r"SGD.step\(\) is the second step with one batch.*put both updates into one `with session.step\(\):`"):
            other.step()
        assert (session.at, model.bias.item()) == (8, before)


EXAMPLE = ROOT / "examples" / "frameworks" / "with_accelerate.py"


def test_the_page_quotes_the_example() -> None:
    page = (ROOT / "docs" / "frameworks-accelerate.md").read_text().split("\n## ")[0]
    program = {line.strip() for line in EXAMPLE.read_text().splitlines()}
    block, ema = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert "extra=" in ema
    assert {line.strip() for line in block.splitlines()} - {"..."} <= program
    assert len(page.split()) <= 340


@pytest.mark.parametrize("world", [0, pytest.param(2, marks=pytest.mark.long)])
def test_the_example(world: int, daemon: Daemon, tmp_path: Path) -> None:
    """Without a launcher, and with one."""
    if world:
        out = daemon.run(EXAMPLE.read_text(), world=world).done()
    else:
        (tmp_path / EXAMPLE.name).write_text(EXAMPLE.read_text())
        done = subprocess.run([sys.executable, EXAMPLE.name], env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        out = done.stdout
    assert len(re.findall(rf"^rank \d at step {24 if world else 48}, loss .*, noticed {{}}$", out, re.M)) == max(1, world), out
