"""Megatron-LM #5281 on a PyTorch job: a replica whose state has gone bad is never what anybody goes on from, the culprit is named, and nothing goes
round in a loop. Here by its values; by its bits, in the copies that daemons hold, in internal/trouble/badcopy_test.go.
"""

from __future__ import annotations

import re

import pytest

from conftest import Daemon

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

PROGRAM = """
import hashlib, sys
import torch, torch.distributed as dist
import replicad
from replicad.parallel import ddp
from replicad.store import init_process_group

how = sys.argv[1]
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = replicad.Session(model=model, optimizer=optimizer)
start = session.resume()
rank, epoch = session.rank.number, session.order.epoch
print("START", rank, int(start), start.source, flush=True)
init_process_group(session)
wrapped = ddp(model)
for step in range(start + 1, 61):
    optimizer.zero_grad()
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    wrapped(x).square().mean().backward()
    with session.step():
        optimizer.step()
        if how == "poisoned" and epoch == 1 and step == 20 and rank == 1:  # after the sum, before the digest: in its own copy alone
            with torch.no_grad():
                model[0].weight[0, 0] = float("nan")
    session.commit()  # these steps are faster than commits, and a step that nobody copies is compared with nobody's: the next sum would spread the NaN to all
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
print("END", digest, bool(torch.isfinite(model[0].weight).all()), flush=True)
session.leave()
session.close()
"""


def test_a_poisoned_replica(daemon: Daemon) -> None:
    ends = {}
    for how in ("undisturbed", "poisoned"):
        job = daemon.run(PROGRAM, how, world=3)
        out = job.done()
        ends[how] = set(re.findall(r"^END (\w+ \w+)$", out, re.M))
        assert len(ends[how]) == 1, out
    assert ends["poisoned"] == ends["undisturbed"], out
    starts = [int(s) for s in re.findall(r"^START \d (\d+)", out, re.M)]
    again = [s for s in starts if s > 0]
    assert again, out
    assert max(again) < 20, f"went on from the poisoned step: {starts}"
    assert len(starts) <= 9, f"a loop: {starts}"
    assert re.search(r"rank 1: killed, outvoted: its root of group 0 at step 20 is \w+, the majority has another", out), f"the culprit is not named:\n{out}"
