"""A parameter without elements: a head with no classes yet, LoRA of rank 0 (DeepSpeed#8467, NeMo Automodel#2997, pytorch#48152, #117392).

An argument names the optimizer.
"""

import sys

import torch
from fault import end, fault, steps

import replicad

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9),
    "adam": lambda ps: torch.optim.Adam(ps, foreach=False),
    "fused": lambda ps: torch.optim.AdamW(ps, fused=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
torch.manual_seed(1)
model = torch.nn.ModuleDict({"body": torch.nn.Linear(8, 4), "extra": torch.nn.Linear(4, 0)})
optimizer = OPTIMIZERS[sys.argv[1]](model.parameters())

with replicad.Session(model, optimizer) as session:
    session.resume()
    for step in steps(session, 8):
        hidden = model["body"](torch.randn(16, 8))
        loss = hidden.pow(2).mean() + model["extra"](hidden).sum()
        optimizer.zero_grad()
        loss.backward()
        fault("backward", step)
        with session.step():
            optimizer.step()
    end(model=model, optimizer=optimizer)
