"""Memory that is given back between two steps comes back with every bit."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

from conftest import Daemon

TRAIN = """
import hashlib, os, signal, sys, traceback
import torch
from torch import nn
import replicad

how = sys.argv[1]
torch.manual_seed(1)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight
        whole = torch.randn(64)
        self.part, self.beside = nn.Parameter(whole[:16]), whole[16:]  # one storage, of which a quarter is registered
        self.base = nn.Parameter(torch.randn(16), requires_grad=False)

    def forward(self, x):
        return self.head(self.norm(self.embed(x) * self.base + self.part + self.beside.sum()))


model = Net()
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randint(32, (8,)), torch.randint(32, (8,))
session = replicad.Session(model=model, optimizer=optimizer, staging=True)


def tensors():
    return [*model.parameters(), *model.buffers(), model.beside, *(v for s in optimizer.state.values() for v in s.values())]


def digest():
    h = hashlib.sha256()
    for t in tensors():
        h.update(t.detach().clone().numpy().tobytes())  # numpy would hold on to the memory itself
    return h.hexdigest()[:16]


def refused(call):
    try:
        call()
    except replicad.SessionState as err:
        print("REFUSED", err, flush=True)
    else:
        raise AssertionError("not refused")


def step():
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    with session.step():
        optimizer.step()


start = session.resume()
print("AT", int(start), digest(), flush=True)


def main():
    while session.at < 12:
        step()
        if how == "never" or session.at % 4:
            continue
        before, held = digest(), sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors()}.values())
        with session.offload() as given_back:
            assert given_back == held, (given_back, held)
            assert [t.untyped_storage().nbytes() for t in tensors()] == [0] * len(tensors())
            if session.at == 4 and start == 0:
                for call in (step, session.resume, session.commit, session.offload().__enter__):
                    refused(call)
            if session.at == 8 and start == 0 and how == "killed":
                print("KILLED", session.at, before, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        assert digest() == before
    print("END", digest(), flush=True)


try:
    main()
except Exception:
    traceback.print_exc()  # and the job ends: it would be started again for ever
session.leave()
session.close()
"""


@pytest.fixture(scope="module")
def undisturbed(daemon: Daemon) -> str:
    return re.findall(r"^END (\w+)$", daemon.run(TRAIN, "never").done(), re.M)[0]


@pytest.mark.parametrize("how", ["offloaded", "killed"])
def test_training_goes_on_to_the_bit(daemon: Daemon, undisturbed: str, how: str) -> None:
    out = daemon.run(TRAIN, how).done()
    for what in ("a forward", "resume", "commit", "offload"):
        assert f"REFUSED {what} inside of `with session.offload()`" in out, out
    assert re.findall(r"^END (\w+)$", out, re.M) == [undisturbed]
    if how == "killed":
        killed = re.findall(r"^KILLED (8 \w+)$", out, re.M)[0]
        # What lies beside registered tensors is the program's, and made anew by it.
        assert re.findall(r"^AT (\d+ \w+)$", out, re.M)[1] == killed


def test_what_lies_where_it_was_registered_stays(run: Callable[..., str]) -> None:
    out = run(
        """
        import torch, replicad
        model = torch.nn.Linear(2, 2)
        with replicad.Session(model=model) as session:
            session.resume()
            try:
                with session.offload():
                    pass
            except replicad.SessionState as err:
                print("REFUSED", err)
        """
    )
    assert "REFUSED offload: this session registered every tensor in place in host memory, and can't move it: make the session with staging=True" in out


FENCED = """
import os, signal, time
import torch
import replicad

rank = int(os.environ["REPLICAD_RANK"])
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
session = replicad.Session(model=model, optimizer=optimizer, staging=True)


def train(call):
    start = session.resume()
    print("AT", rank, int(start), start.source, call.runs, flush=True)
    for step in range(start + 1, 9):
        model(torch.ones(1, 64)).square().sum().backward()
        with session.step():
            optimizer.step()
        optimizer.zero_grad()
        if step == 4 and start == 0:
            session.commit()  # what rank 1 has not copied yet dies with it
        if step == 4 and start == 0 and rank == 1:
            session.rank.kv_get("given back")
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 4 and start == 0:
            with session.offload() as nbytes:
                print("GAVE", nbytes, model.weight.untyped_storage().nbytes(), flush=True)
                session.rank.kv_set("given back", b"")
                while True:  # a peer is lost meanwhile
                    time.sleep(0.01)
    session.leave()


replicad.inprocess.wrap(session)(train)()
print("END", rank, repr(float(model.weight.detach().double().sum())), repr(float(model.bias.detach().double().sum())), flush=True)
session.close()
"""


def test_a_restart_while_memory_is_given_back(daemon: Daemon) -> None:
    """It is raised in the block, whose end brings the memory back; the rank goes on in its process with every bit."""
    import torch

    out = daemon.run(FENCED, world=2).done()
    assert re.findall(r"^GAVE (\d+) (\d+)$", out, re.M) == [(str(3 * 4 * (64 * 64 + 64) + 2 * 4), "0")], out
    assert re.search(r"^AT 0 4 own-ram 2$", out, re.M), out
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        model(torch.ones(1, 64)).square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    want = f"{float(model.weight.detach().double().sum())!r} {float(model.bias.detach().double().sum())!r}"
    assert sorted(re.findall(r"^END (.*)$", out, re.M)) == [f"0 {want}", f"1 {want}"], out
