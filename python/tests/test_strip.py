"""A finished run's checkpoints without the optimizer's state: the model's tensors stay bit for bit, and nothing resumes from them."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import torch

from conftest import Daemon

#: A model with a buffer, and an optimizer with state of its own. At its end each rank leaves the model's parameters in a file.
TRAIN = """
import sys
import torch, replicad

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
with replicad.Session(model, optimizer) as session:
    session.resume()
    for step in session.steps(3):
        with session.step():
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    session.save(wait=True)
    torch.save(model.state_dict(), sys.argv[1])
"""


def tensors(file: Path) -> dict[str, bytes]:
    """The bytes of a safetensors file's tensors."""
    raw = file.read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    head: dict[str, Any] = json.loads(raw[8 : 8 + n])
    return {name: raw[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]] for name, t in head.items() if name != "__metadata__"}


def test_stripped(own_daemon: Daemon) -> None:
    daemon, name = own_daemon, f"strip-{os.getpid()}"
    trained = daemon.dir / "trained.pt"
    daemon.run(TRAIN, str(trained), name=name, flags=("--durable-every", "0")).done()
    where = f"{daemon.dir}/replicad-dev/durable/{name}"
    (before,) = json.loads(daemon.verb("ckpt", "ls", where, "--json"))
    pruned = json.loads(daemon.verb("ckpt", "prune", where, "--strip-optimizer", "--idle", "0s", "--json"))
    assert [row["strip"]["what"] for row in pruned] == ["stripped"], pruned
    (after,) = json.loads(daemon.verb("ckpt", "ls", where, "--json"))
    assert after["stripped"]
    assert after["state"] == "good"
    model = torch.load(trained, weights_only=True)
    moments = 2 * sum(t.nbytes for k, t in model.items() if "running" not in k and "num" not in k)
    assert before["bytes"] - after["bytes"] > moments // 2
    assert pruned[0]["strip"]["freed_bytes"] >= moments
    have = {k.split("/")[-1]: b for f in Path(where).rglob("step-*/*.safetensors") for k, b in tensors(f).items()}
    assert not [k for k in have if k.startswith("optim")]
    for key, t in model.items():
        assert have[f"model.{key}"] == t.numpy().tobytes(), key
    daemon.verb("ckpt", "verify", where, "-q")

    again = daemon.run(TRAIN, str(trained), name=name, flags=("--durable-every", "0", "--resume"))
    assert again.wait() != 0
    assert "can be used: step 3: it was stripped of its optimizer state (replicad ckpt prune --strip-optimizer)" in again.printed(), again.printed()
