"""torchdata's StatefulDataLoader under a session: the samples of a plain run, epoch after epoch, with a restart in any place and without."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchdata import stateful_dataloader as stateful

from conftest import Daemon
from replicad._core import capsule
from replicad._torch import loaders

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own call

EPOCHS, BATCHES = 3, 4


def loader(own: bool, workers: int = 0) -> Any:
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5) if own else None
    return stateful.StatefulDataLoader(range(3 * BATCHES), batch_size=3, shuffle=True, generator=generator, num_workers=workers)


def samples(lo: Any, count: int, kept: list[Any] | None = None) -> list[list[int]]:
    """The next batches; their loader's state after each as a session keeps it, with torch's own generator."""
    out: list[list[int]] = []
    while len(out) < count:
        for batch in lo:
            out.append(batch.tolist())
            if kept is not None:
                kept.append((capsule.pack(loaders.state(lo), "data"), torch.get_rng_state()))
            if len(out) == count:
                break
    return out


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [True, False], ids=["a generator of its own", "torch's"])
def test_keeping_state_draws_nothing(own: bool, workers: int) -> None:
    want = samples(loader(own, workers), EPOCHS * BATCHES)
    lo = loader(own, workers)
    before = torch.get_rng_state(), None if lo.generator is None else lo.generator.get_state()
    first = loaders.state(lo)
    assert lo._iterator is None, "no worker is started by asking"
    loaders.set_state(lo, capsule.unpack(capsule.pack(first, "data")))  # a session loads what it has sealed in a fresh job, too
    assert torch.equal(torch.get_rng_state(), before[0]) and (lo.generator is None or torch.equal(lo.generator.get_state(), before[1]))
    kept: list[Any] = []
    assert samples(lo, EPOCHS * BATCHES, kept) == want
    assert max(len(state) for state, _ in kept) < loaders.room(loader(own, workers)), "they fit the room that a session makes before it begins"
    for at in (1, 3, 4, 5, 8):
        again = loader(own, workers)
        loaders.set_state(again, capsule.unpack(kept[at - 1][0]))
        torch.set_rng_state(kept[at - 1][1])
        assert samples(again, EPOCHS * BATCHES - at) == want[at:], at


def test_a_session_changes_no_sample(daemon: Daemon) -> None:
    """In three epochs with real daemons: undisturbed, and killed in the second."""
    program = """
    import os, signal, sys, torch, replicad
    from torchdata.stateful_dataloader import StatefulDataLoader
    torch.manual_seed(3)
    loader = StatefulDataLoader(range(12), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(5))
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kill, session = int(sys.argv[1]), None
    if kill >= 0:
        session = replicad.Session(model=model, optimizer=optimizer, data=loader)
        at = session.resume()
    step = int(at) if session else 0
    while step < 12:
        for batch in loader:
            step += 1
            print("STEP", step, batch.tolist(), flush=True)
            if session:
                model(torch.ones(2, 4)).sum().backward()
                with session.step():
                    optimizer.step()
                session.commit()
                if step == kill and at.source == "fresh":
                    os.kill(os.getpid(), signal.SIGKILL)
    if session:
        session.leave()
    else:
        rank = replicad.Session(model=model, optimizer=optimizer)
        rank.resume()
        rank.leave()
    """

    def steps(kill: int) -> dict[str, str]:
        return dict(re.findall(r"^STEP (\d+) (.*)$", daemon.run(program, str(kill)).done(), re.M))

    want = steps(-1)
    assert len(want) == 12
    for kill in (0, 4, 6):
        assert steps(kill) == want, kill
