"""Steps that update nothing: a batch whose loss is not finite, by `continue`, and gradients that overflow, by the scaler."""

import torch

import replicad
from replicad.data import Loader

STEPS = 40
torch.manual_seed(1)
x = torch.randn(320, 8)
x[::40] = float("nan")
x[20::40] *= 1e36  # finite, and its scaled gradients are not
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
scaler = torch.amp.GradScaler("cpu", growth_interval=4)
loader = Loader(torch.utils.data.TensorDataset(x), 4, seed=1)
skipped = overflown = 0

with replicad.Session(model, optimizer, scheduler=scheduler, scaler=scaler, data=loader) as session:
    session.resume()
    batches = loader.endless()
    for step in session.steps(STEPS):
        (inputs,) = next(batches)
        loss = model(inputs).abs().mean()
        if not torch.isfinite(loss):
            skipped += 1
            continue  # the session counts it as a step that updates nothing
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        with session.step():
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        overflown += scaler.get_scale() < before
    print(f"step {session.at} loss {loss.item():.4f}, of this process's steps {skipped} had no loss and {overflown} overflowed, noticed {list(session.noticed)}", flush=True)
