"""What stands still on purpose says so, and a daemon that was away hears it as well (libreplicad's own tests have what is sent)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import PATIENCE, Daemon

EVALUATES = """
import torch
import os, sys, time
import replicad

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with replicad.Session(model, optimizer) as session:
    session.resume()
    model(torch.ones(1, 2)).sum().backward()
    with session.step():
        optimizer.step()
    session.commit()
    print("AT", session.at, flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    with session.pause(3600):
        print("EVALUATES", flush=True)
        while session.stats().reconnects == 0:
            time.sleep(0.01)
"""


def test_a_pause_may_begin_while_the_daemon_is_away(own_daemon: Daemon, tmp_path: Path) -> None:
    job = own_daemon.run(EVALUATES, str(tmp_path / "away"))
    job.until("AT 1")
    assert own_daemon.process is not None
    own_daemon.process.kill()
    own_daemon.process.wait(PATIENCE)
    (tmp_path / "away").touch()
    job.until("EVALUATES")
    own_daemon.launch()
    own_daemon.ready()
    job.done()
