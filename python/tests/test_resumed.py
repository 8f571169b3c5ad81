"""A program is told which durable generation it goes on from."""

from __future__ import annotations

import os
import re

from conftest import Daemon

#: A model that counts its steps. Argument: the last step.
TRAIN = """
import logging, sys
import torch, replicad

logging.basicConfig(level=logging.INFO, format="LOG %(message)s")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with replicad.Session(model, optimizer) as session:
    at = session.resume()
    print("TOLD", repr(at), flush=True)
    assert at.told == (repr(at).split(": ", 1)[1] if at.source == "durable" else ""), at.told
    for step in session.steps(int(sys.argv[1])):
        with session.step():
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_told_what_it_resumes_from(own_daemon: Daemon) -> None:
    name = f"told-{os.getpid()}"
    out = own_daemon.run(TRAIN, "4", name=name, flags=("--durable-every", "2")).done()
    assert re.search(r"^TOLD step 0 from fresh, epoch \d+$", out, re.M), out
    out = own_daemon.run(TRAIN, "6", name=name, flags=("--resume",)).done()
    where = rf"step 4 of file://\S*/{name} \(\d+ s old, \d+ KiB\)"
    assert re.search(rf"^TOLD step 4 from durable, epoch \d+: {where}$", out, re.M), out
    assert re.search(rf"^LOG replicad: rank 0 of 1 resumes at step 4 from durable, epoch \d+: {where}$", out, re.M), out
    assert re.search(rf"^replicad run: resumed: {where}; loaded in \d+\.\d s$", out, re.M), out
