"""Mixed precision whose gradients overflow: a skipped step is a step, and the scale goes on as it was."""

from __future__ import annotations

import re

import pytest

from conftest import Daemon

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

PROGRAM = """
import hashlib, os, signal, sys
import torch, replicad

fault = sys.argv[1] == "killed"
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
session = replicad.Session(model=model, optimizer=optimizer, scheduler=schedule, scaler=scaler)
start = session.resume()
print("START", int(start), start.source, flush=True)
skipped = 0
for step in range(start + 1, 15):
    optimizer.zero_grad()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(4, 4)).float().square().mean()
        scaler.scale(loss * (float("inf") if step in (5, 6, 11) else 1)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if step == 7 and start == 0 and fault:
        session.commit()
        os.kill(os.getpid(), signal.SIGKILL)
    scale = scaler.get_scale()
    with session.step():
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    skipped += scaler.get_scale() < scale
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
print("END", digest, scaler.state_dict(), sorted(session.noticed), flush=True)
print("SKIPPED", skipped, flush=True)
session.leave()
session.close()
"""


def test_overflows_before_and_after_a_kill(daemon: Daemon) -> None:
    straight, killed = (daemon.run(PROGRAM, how).done() for how in ("straight", "killed"))
    assert "SKIPPED 3" in straight
    assert "START 6 own-ram" in killed
    assert "SKIPPED 1" in killed  # in the second life
    end = re.compile(r"^END .*$", re.M)
    assert end.findall(straight) == end.findall(killed)
    assert "'_growth_tracker'" in killed
