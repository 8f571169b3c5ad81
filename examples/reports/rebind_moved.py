"""Tensors are moved midway, as accelerate's `prepare` moves them on a CPU, and then only the scheduler is bound anew. MOVE=0 moves nothing, REBIND=0 binds nothing."""

import os

import torch
from fault import end, fault

import replicad

torch.manual_seed(1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)


def schedule() -> torch.optim.lr_scheduler.LRScheduler:
    """One that changes nothing."""
    return torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)


with replicad.Session(model, optimizer, scheduler=schedule()) as session:
    start = session.resume()
    for last in (5, 10):
        if last == 10 and start < 5:
            if os.environ.get("MOVE", "1") == "1":
                model.to("cpu:0")
            if os.environ.get("REBIND", "1") == "1":
                session.rebind(scheduler=schedule())
            session.resume()
        while session.at < last:
            loss = model(torch.randn(8, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with session.step():
                optimizer.step()
    session.commit(timeout=30)
    fault("end", session.at)
    end(model=model, optimizer=optimizer)
