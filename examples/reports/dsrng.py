"""A dataset that augments with a numpy generator of its own. WORKERS load it; VAR=added: `replicad.rng.add` has the generator."""

import os

import numpy as np
import torch
from fault import end, fault, steps

import replicad
from replicad.data import Loader


class Noisy(torch.utils.data.Dataset):
    """Samples with noise that is drawn anew each time."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)

    def __len__(self) -> int:
        return 128

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.standard_normal(8).astype(np.float32)) + i / 128


torch.manual_seed(1)
data = Noisy()
if os.environ.get("VAR") == "added":
    replicad.rng.add("augment", data.rng)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = Loader(data, 8, seed=1, num_workers=int(os.environ.get("WORKERS", "0")))

with replicad.Session(model, optimizer, data=loader) as session:
    session.resume()
    batches = loader.endless()
    for step in steps(session, 20):
        x = next(batches)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        fault("backward", step)
        with session.step():
            optimizer.step()
    end(model=model)
    batches.close()
