"""A process that begins with other random numbers than the job's first one, and has drawn from them, says so once; one that seeds them, or draws nothing, does not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from replicad._core import beginnings
from replicad._core.beginnings import Beginning, drawn
from replicad._torch.beginning import Began


@pytest.fixture(autouse=True)
def put_back() -> Any:
    was = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(was[0])
    np.random.set_state(was[1])
    torch.set_rng_state(was[2])
    beginnings.begin()


def a_process(program: Callable[[], object]) -> Began:
    """What a session has of a process that has done this before."""
    random.seed()
    np.random.seed()
    torch.seed()
    beginnings.begin()
    program()
    return Began()


def said(first: Callable[[], object], then: Callable[[], object], step: int = 7, fresh: bool = False) -> list[str]:
    """What the second process says of a job that the first one began."""
    text = a_process(first).text
    lines: list[str] = []
    second = a_process(then)
    second.loaded(text, step, fresh, True, lambda _, line: lines.append(line))
    second.loaded(text, step, fresh, False, lambda _, line: lines.append(line))
    assert second.text == (text if step and not fresh else second._own.text())
    return lines


DRAWS: dict[str, Callable[[], object]] = {
    "torch.manual_seed": lambda: torch.randperm(200),
    "random.seed": lambda: random.sample(range(200), 50),
    "numpy.random.seed": lambda: np.random.permutation(200),
}
SEEDS: dict[str, Callable[[], object]] = {"torch.manual_seed": lambda: torch.manual_seed(5), "random.seed": lambda: random.seed(5), "numpy.random.seed": lambda: np.random.seed(5)}


@pytest.mark.parametrize("call", DRAWS)
def test_who_draws_and_seeds_nothing_is_told(call: str) -> None:
    (line,) = said(DRAWS[call], DRAWS[call])
    assert "is not what step 7 was trained with" in line
    assert [c for c in DRAWS if f" {c}(N)" in line] == [call]


def test_all_are_in_one_line() -> None:
    def all_() -> None:
        for draw in DRAWS.values():
            draw()

    (line,) = said(all_, all_)
    assert all(call in line for call in DRAWS)


@pytest.mark.parametrize("call", DRAWS)
def test_who_seeds_is_told_nothing(call: str) -> None:
    def seeds() -> None:
        SEEDS[call]()
        DRAWS[call]()

    assert said(seeds, seeds) == []
    more = lambda: (seeds(), DRAWS[call]())  # noqa: E731 (a process that has draws the others have not: it makes a cache)
    assert said(seeds, more) == []
    assert said(more, seeds) == []


@pytest.mark.parametrize("call", DRAWS)
def test_a_seed_of_its_own_in_each_process(call: str) -> None:
    """Of torch the seed is known: it is said where processes have two."""
    seeds: dict[str, Callable[[int], object]] = {"torch.manual_seed": torch.manual_seed, "random.seed": random.seed, "numpy.random.seed": np.random.seed}

    def by(n: int) -> None:
        seeds[call](n)
        DRAWS[call]()

    assert len(said(lambda: by(1), lambda: by(2))) == (1 if call == "torch.manual_seed" else 0)


def test_who_draws_nothing_is_told_nothing() -> None:
    assert said(lambda: None, lambda: None) == []
    assert said(DRAWS["random.seed"], lambda: None) == []


def test_a_job_that_begins_is_its_own_first_process() -> None:
    assert said(DRAWS["torch.manual_seed"], DRAWS["torch.manual_seed"], step=0) == []
    assert said(DRAWS["torch.manual_seed"], DRAWS["torch.manual_seed"], fresh=True) == []


def test_a_copy_that_has_no_text() -> None:
    lines: list[str] = []
    for text in ("", "torch", "x=y", "torch="):
        a_process(lambda: None).loaded(text, 3, False, True, lambda _, line: lines.append(line))
    assert lines == []


@pytest.mark.parametrize("n", [beginnings.FEW + 1, 623, 624, 625, 10_000, 600_000])
def test_drawn_is_told_from_seeded(n: int) -> None:
    g = random.Random(3)
    place = lambda: (g.getstate()[1][:624], g.getstate()[1][624])  # noqa: E731
    first = place()
    assert not drawn(first, place())
    g.getrandbits(32 * n)
    assert drawn(first, place())
    g.seed(4)
    assert not drawn(first, place())


def test_numpy_that_is_imported_later_says_its_first_state(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = np.random.RandomState(np.random.MT19937())
    bits = fresh._bit_generator
    monkeypatch.setattr(np.random, "get_state", fresh.get_state)
    monkeypatch.setattr(np.random, "get_bit_generator", lambda: bits)
    del beginnings._first["numpy"]
    fresh.permutation(2000)
    assert Beginning.now()._unseeded("numpy")
    fresh.seed(5)
    assert not Beginning.now()._unseeded("numpy")


PROGRAM = """
import json, logging, os, pathlib, signal, sys, torch, replicad
from replicad.data import Loader

said = []
class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("replicad").addHandler(Said())

if sys.argv[1] == "seeds":
    torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.arange(40), torch.ones(40, 4))
train, held_out = torch.utils.data.random_split(data, [30, 10])
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = Loader(train, 5, seed=1)
killed, seen = pathlib.Path(sys.argv[0] + ".killed"), set()
with replicad.Session(model, optimizer, data=loader) as session:
    first = int(session.resume())
    batches = loader.endless()
    for step in session.steps(8):
        i, x = next(batches)
        model(x).square().mean().backward()
        with session.step():
            optimizer.step()
            optimizer.zero_grad()
        if step == 3:
            session.commit()
        if step == 4 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    print("SAID", json.dumps([first, [x for x in said if "began with other" in x], sorted(session.noticed)]))
"""


@pytest.mark.parametrize("how", ["seeds", "draws a split"])
def test_what_is_said_in_a_job(run: Callable[..., str], how: str) -> None:
    out = run(PROGRAM, how)
    first, said, noticed = json.loads(next(x for x in out.splitlines() if x.startswith("SAID ")).removeprefix("SAID "))
    assert first >= 3, "it has resumed"
    assert noticed == ([] if how == "seeds" else ["the beginning"])
    assert len(said) == len(noticed)
    if said:
        assert "Call torch.manual_seed(N) with the same number in each process" in said[0]
        assert f"is not what step {first} was trained with" in said[0]


@pytest.mark.parametrize("ahead", [0, 1, 620])
def test_what_a_library_draws_as_it_is_imported_says_nothing(ahead: int) -> None:
    """rich draws a number for the names of its styles, and Lightning imports it."""
    begins = lambda: ([random.getrandbits(32) for _ in range(ahead)], beginnings.begin(), random.getrandbits(24))  # noqa: E731
    assert said(begins, begins) == []
    few = lambda: (begins(), [random.getrandbits(32) for _ in range(beginnings.FEW)])  # noqa: E731
    assert len(said(few, few)) == 1


def test_its_text_has_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of the capsule that it is in follows from it: a process whose text is longer would register another geometry, and end the job."""
    lengths = set()
    for seed in (0, 7, 2**40, 2**63, 2**64 - 1, -1):
        torch.manual_seed(seed)
        lengths.add(len(Beginning.now().text()))
    monkeypatch.setattr(beginnings, "_numpys", lambda: None)
    lengths.add(len(Beginning.now().text()))
    assert len(lengths) == 1
    assert said(lambda: DRAWS["numpy.random.seed"](), lambda: DRAWS["numpy.random.seed"]()) == [], "what one of two processes does not have is not compared"
