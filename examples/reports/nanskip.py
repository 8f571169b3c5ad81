"""A batch with NaN: the loop goes on to the next batch without a step (nanoGPT PR #227, WeatherGenerator PR #2718, neosr#88).

With LOOP=range iterations are counted that the session does not count. VAR=updated: such an iteration has a step that updates nothing.
"""

import os

import torch
from fault import end, fault, steps

import replicad
from replicad.data import Loader

torch.manual_seed(1)
x = torch.randn(320, 8)
x[::20] = float("nan")
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
loader = Loader(torch.utils.data.TensorDataset(x), 4, seed=1)

with replicad.Session(model, optimizer, scheduler=scheduler, data=loader) as session:
    session.resume()
    batches = loader.endless()
    for _ in steps(session, 40):
        (a,) = next(batches)
        loss = model(a).pow(2).mean()
        finite = bool(torch.isfinite(loss))
        if not finite and os.environ.get("VAR") != "updated":
            continue
        optimizer.zero_grad()
        loss.backward()
        fault("backward", session.at + 1)
        with session.step(updated=finite):
            if finite:
                optimizer.step()
            scheduler.step()
    end(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
