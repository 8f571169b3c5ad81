"""What hangs on the number of a batch falls on the same batches after a resume in the middle of an epoch, by loader.numbered(); where it does not, it is said."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from replicad._torch.cadence import Cadence
from replicad.data import Loader

#: Whether an optimizer is stepped, by (index in the loop, batches of the epoch, batches since the program began).
RULES: dict[str, Callable[[int, int, int], bool]] = {
    "i % 4 == 0 or the last": lambda i, n, _: i % 4 == 0 or i == n - 1,
    "i % 3 == 0": lambda i, n, _: i % 3 == 0,
    "(i + 1) % 4 == 0 or the last": lambda i, n, _: (i + 1) % 4 == 0 or i == n - 1,
    "each": lambda i, n, _: True,
    "two of three": lambda i, n, _: i % 3 != 2,
    "a count that the program keeps": lambda i, n, count: count % 3 == 0,
    "never": lambda i, n, _: False,
}


def loader(batches: int) -> Loader:
    return Loader(list(range(2 * batches)), 2, rank=0, world=1)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)


def run(rule: Callable[[int, int, int], bool], batches: int, killed: int, numbered: bool, epochs: int = 4) -> tuple[list[int], list[str]]:
    """The batches, counted from the first epoch's first, with which an optimizer is stepped, and what is said. Each batch is a step of a session; the process is killed behind one,
    and another one goes on."""
    stepped: list[int] = []
    said: list[str] = []
    kept: tuple[Any, str, int] | None = None
    for life in range(2):
        data, o = loader(batches), optimizer()
        cadence = Cadence({"optim": o}, {"data": data})
        count = 0
        if kept is not None:
            data.load_state_dict(kept[0])
            count = kept[2]
        cadence.loaded(kept[1] if kept else "")
        while data.epoch < epochs:
            for i, _ in data.numbered() if numbered else enumerate(data):
                count += 1
                if rule(i, batches, count):
                    stepped.append(count)
                    cadence.stepped(o)
                said += [text for _, text in cadence.found()]
                if life == 0 and count == killed:
                    break
            if life == 0 and count == killed:
                break
        kept = data.state_dict(), cadence.text(), count
    return stepped, said


@pytest.mark.parametrize("rule", RULES)
def test_numbered_falls_where_it_did(rule: str) -> None:
    for batches, killed in itertools.product((5, 10, 13), (1, 3, 6, 9, 14, 17, 25)):
        want = run(RULES[rule], batches, 0, True)
        assert run(RULES[rule], batches, 0, False) == want, "without a fault both are alike"
        assert run(RULES[rule], batches, killed, True) == want
        assert want[1] == []


@pytest.mark.parametrize("rule", RULES)
def test_enumerate_is_named_where_updates_fall_elsewhere_and_nowhere_else(rule: str) -> None:
    told = 0
    for batches, killed in itertools.product((5, 10, 13), range(1, 40)):
        want, (got, said) = run(RULES[rule], batches, 0, True)[0], run(RULES[rule], batches, killed, False)
        if got == want:
            assert said == [], (batches, killed)
        assert len(said) < 2
        told += len(said)
    assert (told > 0) == (rule in ("i % 4 == 0 or the last", "i % 3 == 0", "(i + 1) % 4 == 0 or the last")), told


def test_what_is_said() -> None:
    _, (text,) = run(RULES["i % 4 == 0 or the last"], 13, 13 + 6, False)
    assert text == (
        "optim is stepped with batch 7 of epoch 1, in a process that has resumed in the middle of it; before, that was with batches 1, 5, 9 and so on of an epoch: "
        "`enumerate(loader)` begins at 0 in the rest of an epoch: use `loader.numbered()`, which counts on, for whatever hangs on the number of a batch"
    )


def test_several_loaders_and_none_are_no_matter() -> None:
    o = optimizer()
    for data in ({}, {"a": loader(5), "b": loader(5)}, {"a": torch.Generator()}):
        cadence = Cadence({"optim": o}, data)
        cadence.loaded("")
        cadence.stepped(o)
        assert cadence.found() == []
        assert cadence.text() == ""


PROGRAM = """
import json, os, pathlib, signal, sys, torch, replicad
from replicad.data import Loader

how = sys.argv[1]
torch.manual_seed(1)
G, D = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
og, od = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
loader = Loader(torch.utils.data.TensorDataset(torch.randn(40, 4)), 4, seed=1)
killed = pathlib.Path(sys.argv[0] + ".killed")
with replicad.Session({"G": G, "D": D}, {"g": og, "d": od}, data=loader) as session:
    first = int(session.resume())
    while loader.epoch < 2:
        for i, (x,) in loader.numbered() if how == "numbered" else enumerate(loader):
            D(G(x)).mean().backward()
            with session.step():
                od.step()
                if i % 3 == 0:
                    og.step()
            G.zero_grad(), D.zero_grad()
            if session.at == 8:
                session.commit()
            if session.at == 9 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    print("SAID", json.dumps([first, sorted(session.noticed)]))
"""


@pytest.mark.parametrize("how", ["numbered", "enumerate"])
def test_in_a_job(run: Callable[..., str], how: str) -> None:
    out = run(PROGRAM, how)
    first, noticed = json.loads(next(x for x in out.splitlines() if x.startswith("SAID ")).removeprefix("SAID "))
    assert first in (8, 9), "it has resumed in the first epoch"
    assert noticed == ([] if how == "numbered" else ["optim.g, by the batch"])
