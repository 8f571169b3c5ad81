"""DDP with `gradient_as_bucket_view` and `zero_grad(set_to_none=False)`, on three ranks (pytorch#41954, #44344, #37030).

O has a letter for each option: v is a view of the buckets, z keeps zeroed gradients, c makes small buckets.
"""

import os

import torch
from fault import end, fault, steps

import replicad
from replicad.data import Loader
from replicad.parallel import ddp
from replicad.store import init_process_group

OPTIONS = os.environ.get("O", "vcz")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = Loader(torch.utils.data.TensorDataset(torch.randn(256, 8)), 8, seed=1)
options = ({"gradient_as_bucket_view": True} if "v" in OPTIONS else {}) | ({"bucket_cap_mb": 0.01} if "c" in OPTIONS else {})

with replicad.Session(model, optimizer, data=loader) as session:
    session.resume()
    init_process_group(session)
    parallel, batches = ddp(model, **options), loader.endless()
    print("EXPLAINED", session.explain().bit_exact, flush=True)
    for step in steps(session, 20):
        (x,) = next(batches)
        optimizer.zero_grad(set_to_none="z" not in OPTIONS)
        (parallel(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        fault("backward", step)
        with session.step():
            optimizer.step()
    end(model=model, optimizer=optimizer)
