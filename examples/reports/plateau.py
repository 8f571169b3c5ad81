"""`ReduceLROnPlateau` on a validation loss of the rank's own (Lightning#14699, timm PR #2756, fairseq PR #4071).

VAR=between: the loop steps it after the block, as most loops do; VAR=in: in the block.
"""

import os

import torch
from fault import end, fault, steps

import replicad
from replicad.data import Loader
from replicad.parallel import ddp
from replicad.store import init_process_group

BETWEEN = os.environ.get("VAR") == "between"
torch.manual_seed(1)
x = torch.randn(256, 8)
y = (x.sum(1, keepdim=True) > 0).float()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, threshold=0.05)
loader = Loader(torch.utils.data.TensorDataset(x, y), 8, seed=1)
cost = torch.nn.functional.binary_cross_entropy_with_logits


@torch.no_grad()
def validated() -> torch.Tensor:
    """The loss of some samples."""
    return cost(model(x[:64]), y[:64])


with replicad.Session(model, optimizer, scheduler=scheduler, data=loader) as session:
    session.resume()
    init_process_group(session)
    parallel, batches = ddp(model), loader.endless()
    for step in steps(session, 30):
        a, b = next(batches)
        loss = cost(parallel(a), b)
        optimizer.zero_grad()
        loss.backward()
        fault("backward", step)
        with session.step():
            optimizer.step()
            if step % 2 == 0 and not BETWEEN:
                scheduler.step(validated())
            fault("window", step)
        if step % 2 == 0 and BETWEEN:
            scheduler.step(validated())
        fault("after", step)
    end(model=model, optimizer=optimizer, scheduler=scheduler)
