"""Progressive training: at step 10 a loader with larger batches takes over (Megatron-LM#1002, composer PR #551, accelerate#2823).

VAR=both: both loaders are in the session; else the session has the first one alone.
"""

import os

import torch
from fault import end, fault, steps

import replicad
from replicad.data import Loader

torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(256, 8))
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
small, large = Loader(data, 4, seed=1), Loader(data, 16, seed=2)

with replicad.Session(model, optimizer, data={"small": small, "large": large} if os.environ.get("VAR") == "both" else small) as session:
    session.resume()
    first, then = small.endless(), large.endless()
    for step in steps(session, 30):
        (x,) = next(first if step <= 10 else then)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        fault("backward", step)
        with session.step():
            optimizer.step()
    end(model=model, optimizer=optimizer)
