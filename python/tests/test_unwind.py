"""A trainer without in-process restarts comes back from a collective that would wait for ever, once its epoch is closed."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from conftest import Daemon
from replicad._core.life import Life
from replicad._torch import unwind
from replicad.inprocess import AbortProcessGroups, abort

#: Rank 1 breaks off its third step and resumes: its process lives, and its connections stay open. Rank 0 waits for it in a collective. Argument:
#: whose the group is, of "replicad" or of the "program", which has made another one too.
PROGRAM = """
import json, os, sys
import torch, torch.distributed as dist
import replicad
from replicad.store import init_process_group

rank, world = int(os.environ["REPLICAD_RANK"]), int(os.environ["REPLICAD_WORLD"])
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model=model, optimizer=optimizer)
broken = False
while True:
    start = session.resume()
    print(json.dumps({"rank": rank, "pid": os.getpid(), "step": start, "broken": broken}), flush=True)
    try:
        group = None
        if sys.argv[1] == "program":
            if dist.is_initialized():
                dist.destroy_process_group()
            dist.init_process_group("gloo")
            group = dist.new_group([0, 1])
        else:
            init_process_group(session)
        for step in range(start + 1, 11):
            dist.all_reduce(torch.ones(4), group=group)
            if step == 4 and rank == 1 and not broken:
                broken = True
                with session.step():
                    raise ValueError("broken off")
            with session.step():
                optimizer.step()
        session.leave()
        break
    except (RuntimeError, ValueError, replicad.Fenced) as err:
        print(json.dumps({"rank": rank, "error": type(err).__name__}), flush=True)
session.close()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("whose", ["replicad", "program"])
def test_a_blocked_survivor_comes_back(whose: str, daemon: Daemon) -> None:
    """Without an in-process block nobody aborted its groups: it hung in a collective, and was killed after 40 s."""
    job = daemon.run(PROGRAM, whose, world=2)
    job.done()
    said = [json.loads(line) for line in job.out.seen if line.startswith("{")]
    for rank in (0, 1):
        mine = [e for e in said if e["rank"] == rank]
        pids = {e["pid"] for e in mine if "pid" in e}
        assert len(pids) == 1, f"rank {rank} was started again: {mine}"
    assert any(e.get("error") for e in said if e["rank"] == 0)


class Fake:
    """What the thread looks at of a session."""

    def __init__(self) -> None:
        self.life, self.fence = Life(), threading.Event()
        self.life.resumed.set()
        self.frozen = 0
        self.rank = SimpleNamespace(wait_fence=self.fence.wait, freeze_good=self._freeze, fenced=True)

    def _freeze(self) -> None:
        self.frozen += 1


def test_when_groups_are_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[int] = []
    again = threading.Event()

    def free(self: AbortProcessGroups) -> bool:
        aborted.append(fake.frozen)
        if len(aborted) > 1:
            again.set()
        return True

    monkeypatch.setattr(abort.AbortProcessGroups, "free", free)
    fake = Fake()
    fake.life.inside = object()
    thread = unwind.Unwinder(fake, soft=0.01)  # type: ignore[arg-type]
    thread.start()
    fake.fence.set()
    assert not again.wait(0.5) and aborted == [], "inside of an optimizer step"
    fake.life.inside, fake.life.entering = None, True  # a step that only begins may wait for a copy of what a device still has to do
    assert again.wait(30)
    assert set(aborted) == {1}, "the good word stops first, and once"
    fake.life.resumed.clear()
    thread.end()
    thread.join(30)
    assert not thread.is_alive()


def test_blocks_free_their_thread_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = threading.Event()
    monkeypatch.setattr(abort.AbortProcessGroups, "free", lambda self: aborted.set())
    monkeypatch.setattr(unwind, "blocks", 1)
    fake = Fake()
    fake.fence.set()
    thread = unwind.Unwinder(fake, soft=0.01)  # type: ignore[arg-type]
    thread.start()
    assert not aborted.wait(1)
    thread.end()
    thread.join(30)
