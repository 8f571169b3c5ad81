"""A log without doubled rows: `resume()` says which step is in place, and the file is cut behind it."""

import json
from pathlib import Path

import torch

import replicad
from replicad.data import Loader

STEPS = 30


class Log:
    """A file with a line of JSON for each step. Rows of steps that will be done again are cut off."""

    def __init__(self, path: Path, start: int) -> None:
        kept = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in kept if line.endswith("\n") and json.loads(line)["step"] <= start]
        self.file = path.open("w", buffering=1)
        self.file.writelines(whole)

    def row(self, step: int, **values: float) -> None:
        self.file.write(json.dumps({"step": step, **values}) + "\n")


torch.manual_seed(1)
samples = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = Loader(samples, 8, seed=1)

with replicad.Session(model, optimizer, data=loader) as session:
    start = session.resume()
    log = Log(Path("log.jsonl"), start)  # where there are more ranks: on rank 0
    batches = loader.endless()
    for step in session.steps(STEPS):
        x, y = next(batches)
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        with session.step():
            optimizer.step()
        log.row(step, loss=loss.item())
    print(f"step {session.at} loss {loss.item():.4f}, {len(Path('log.jsonl').read_text().splitlines())} rows, noticed {session.noticed}", flush=True)
