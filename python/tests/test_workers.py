"""Workers of a data loader, however they are started: the samples after a kill are those of an undisturbed run."""

from __future__ import annotations

import re

import pytest

from conftest import Daemon

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

PROGRAM = """
import hashlib, os, signal, sys
import torch, replicad
from replicad.data import Loader

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.randn(3) + i

def main():
    how, fault = sys.argv[1], sys.argv[2] == "killed"
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = Loader(Noisy(), 4, seed=1, num_workers=2, multiprocessing_context=how, persistent_workers=True)
    session = replicad.Session(model=model, optimizer=optimizer, data=loader)
    start, batches = session.resume(), loader.endless()
    print("START", int(start), start.source, flush=True)
    for step in range(start + 1, 21):  # 16 batches are an epoch
        x = next(batches)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if step == 7 and start == 0 and fault:
            session.commit()
            os.kill(os.getpid(), signal.SIGKILL)
        with session.step():
            optimizer.step()
    print("END", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16], sorted(session.noticed), flush=True)
    batches.close()
    session.leave()
    session.close()

if __name__ == "__main__":
    main()
"""


END = re.compile(r"^END \w+ \[\]$", re.M)


@pytest.fixture(scope="module")
def straight(daemon: Daemon) -> list[str]:
    """How a run ends that nobody disturbs, with workers that are forked."""
    return END.findall(daemon.run(PROGRAM, "fork", "straight").done())


@pytest.mark.parametrize("how", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])  # fork: in many other tests
def test_other_ways_to_start_workers(daemon: Daemon, straight: list[str], how: str) -> None:
    assert len(straight) == 1
    out = daemon.run(PROGRAM, how, "killed").done()
    assert "START 6 own-ram" in out
    assert END.findall(out) == straight, out
