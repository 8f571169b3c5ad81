"""Very many small tensors, a table of N small experts with AdamW: 4 N regions (KempnerForge PR #16, NeMo Automodel PR #3580).

The session has to start every time, on a loaded machine too.
"""

import os

import torch
from fault import end, fault, steps

import replicad

torch.manual_seed(1)
experts = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(4)) for _ in range(int(os.environ.get("N", "3000")))])
optimizer = torch.optim.AdamW(experts.parameters(), lr=0.01, foreach=True)

with replicad.Session(torch.nn.ModuleDict({"experts": experts}), optimizer) as session:
    session.resume()
    for step in steps(session, 8):
        loss = torch.stack(list(experts)).pow(2).sum() * torch.rand(())
        optimizer.zero_grad()
        loss.backward()
        fault("backward", step)
        with session.step():
            optimizer.step()
    end(experts=experts)
