"""Quantisation-aware training: buffers of observers begin empty and grow in the first forward (pytorch PR #50868, fvcore PR #52, ultralytics PR #26083).

VAR=warm: a forward comes before the session. STAGING=1: the session stages its tensors.
"""

import os
import warnings

import torch
from fault import end, fault, steps
from torch.ao import quantization

import replicad

warnings.simplefilter("ignore")
torch.manual_seed(1)
model = torch.nn.Sequential(quantization.QuantStub(), torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4), quantization.DeQuantStub())
model.train()
model.qconfig = quantization.get_default_qat_qconfig("x86")
quantization.prepare_qat(model, inplace=True)
if os.environ.get("VAR") == "warm":
    model(torch.randn(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

with replicad.Session(model, optimizer, staging=bool(os.environ.get("STAGING"))) as session:
    session.resume()
    for step in steps(session, 20):
        x = torch.randn(16, 8)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        fault("backward", step)
        with session.step():
            optimizer.step()
            if step == 10:
                model.apply(quantization.disable_observer)
    end(model=model, optimizer=optimizer)
