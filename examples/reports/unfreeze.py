"""Fine-tuning: a frozen backbone is thawed at step 10 (Lightning#6891, #21901, detectron2#898).

VAR=group: it comes into the optimizer then, as callbacks do it; =late: only `requires_grad` changes; =flag: it is in the optimizer and asks for a gradient while the session is
made; =asksgroup: it asks for a gradient while the session is made, and comes into the optimizer then.
"""

import os

import torch
from fault import end, fault, steps

import replicad

VAR = os.environ.get("VAR", "group")
torch.manual_seed(1)
backbone, head = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU()), torch.nn.Linear(16, 4)
model = torch.nn.Sequential(backbone, head)
backbone.requires_grad_(VAR in ("flag", "asksgroup"))
optimizer = torch.optim.AdamW(head.parameters() if VAR in ("group", "asksgroup") else model.parameters(), lr=0.01)
session = replicad.Session(model, optimizer)
start = session.resume()
if start == 0:
    backbone.requires_grad_(False)
for step in steps(session, 20):
    x = torch.randn(16, 8)
    loss = torch.nn.functional.cross_entropy(model(x), (x[:, :4]).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    fault("backward", step)
    with session.step():
        optimizer.step()
        if step == 10:
            backbone.requires_grad_(True)
            if VAR in ("group", "asksgroup"):
                optimizer.add_param_group({"params": backbone.parameters(), "lr": 0.001})
end(model=model, optimizer=optimizer)
session.leave()
session.close()
