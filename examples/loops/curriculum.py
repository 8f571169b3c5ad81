"""A curriculum: short batches at first, then large ones of another dataset. The session has both loaders from the beginning."""

import torch

import replicad
from replicad.data import Loader

STEPS, EASY = 30, 12
torch.manual_seed(1)
easy, hard = (torch.utils.data.TensorDataset(torch.randn(256, 8) * scale) for scale in (1.0, 3.0))
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loaders = {"easy": Loader(easy, 4, seed=1), "hard": Loader(hard, 16, seed=2)}

with replicad.Session(model, optimizer, data=loaders) as session:
    session.resume()
    batches = {name: loader.endless() for name, loader in loaders.items()}
    for step in session.steps(STEPS):
        (x,) = next(batches["easy" if step <= EASY else "hard"])
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        with session.step():
            optimizer.step()
    print(f"step {session.at} loss {loss.item():.4f}, noticed {session.noticed}", flush=True)
