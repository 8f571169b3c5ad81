"""The usual loop: a step, and every five steps an evaluation that draws, with dropout left on (transformers#17032, #17055, ai2cm/ace#690, nanoGPT#467).

VAR=preserved: the evaluation draws nothing that lasts; =before: it lies at the top of the next iteration.
"""

import contextlib
import os

import torch
from fault import end, fault, steps

import replicad
from replicad.data import Loader

VAR = os.environ.get("VAR", "")
torch.manual_seed(1)
x = torch.randn(256, 8)
y = (x.sum(1, keepdim=True) > 0).float()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = Loader(torch.utils.data.TensorDataset(x, y), 8, seed=1)
cost = torch.nn.functional.binary_cross_entropy_with_logits


@torch.no_grad()
def evaluate() -> torch.Tensor:
    """The mean loss of four draws of the dropout."""
    model[0].eval()
    with replicad.rng.preserved() if VAR == "preserved" else contextlib.nullcontext():
        return torch.stack([cost(model(x), y) for _ in range(4)]).mean()


with replicad.Session(model, optimizer, data=loader) as session:
    session.resume()
    batches = loader.endless()
    for step in steps(session, 30):
        if VAR == "before" and session.at % 5 == 0 and session.at:
            evaluate()
        a, b = next(batches)
        loss = cost(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        fault("backward", step)
        with session.step():
            optimizer.step()
        if VAR != "before" and step % 5 == 0:
            evaluate()
            fault("evaluation", step)
    end(model=model, optimizer=optimizer)
