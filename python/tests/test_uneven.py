"""Shards of unequal size, and empty ones, in jobs that lose a rank: bit-equal to an undisturbed run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

import cluster
from conftest import Daemon

#: A net with layers of 7, 2 and 3 rows, each sharded by rows, trained without a session and then with one, in which the last rank is killed
#: once. Argument: a file that says that it was.
PROGRAM = """
import hashlib, os, pathlib, signal, sys
import torch
from torch.distributed.fsdp import fully_shard
import replicad
from replicad.store import init_process_group

killed = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
connection = replicad.connect()
rank, world = connection.number, connection.world
init_process_group(connection)

def made():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2), torch.nn.Tanh(), torch.nn.Linear(2, 3))
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)

def backward(model, optimizer, step):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    optimizer.zero_grad()
    model(x).square().mean().backward()

def digest(model, optimizer):
    kept = [t.to_local().detach() for p in model.parameters() for t in (p, optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"])]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in kept)).hexdigest()

model, optimizer = made()
for step in range(1, 13):
    backward(model, optimizer, step)
    optimizer.step()
want = digest(model, optimizer)

model, optimizer = made()
session = replicad.Session(connection=connection, model=model, optimizer=optimizer)
start = session.resume()
for step in range(start + 1, 13):
    if step == 5:
        session.commit()  # a step that finds no free slot is not copied: 4 is, and 5 in the slot that this leaves
    backward(model, optimizer, step)
    if step == 6 and rank == world - 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with session.step():
        optimizer.step()
rows = [p.to_local().shape[0] for p in model.parameters()][::2]
os.write(1, f"END {rank} from {int(start)} with {rows}: {'equal' if digest(model, optimizer) == want else 'NOT EQUAL'}\\n".encode())
session.leave()
session.close()
"""


@cluster.fsdp2
@pytest.mark.parametrize(
    "rows", [pytest.param([[4, 1, 2], [3, 1, 1]], id="2 ranks", marks=pytest.mark.long), pytest.param([[3, 1, 1], [3, 1, 1], [1, 0, 1]], id="3 ranks, an empty shard")]
)
def test_uneven_shards(daemon: Daemon, rows: list[list[int]], tmp_path: Path) -> None:
    out = daemon.run(PROGRAM, str(tmp_path / "killed"), world=len(rows), flags=("--groups", "auto")).done()
    assert (tmp_path / "killed").exists()
    ends = sorted(re.findall(r"^END (\d) from (\d+) with (.*): (.*)$", out, re.M))
    assert {int(start) for _, start, _, _ in ends} <= {4, 5}, out  # 5 is committed beside the forward of 6
    assert [(rank, kept, end) for rank, _, kept, end in ends] == [(str(r), str(n), "equal") for r, n in enumerate(rows)], out
