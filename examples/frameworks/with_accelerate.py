"""A loop of Hugging Face accelerate, with accumulation, clipping, a schedule and a plain DataLoader. Two lines are replicad's."""

from __future__ import annotations

import torch
from accelerate import Accelerator

import replicad

EPOCHS = 3
torch.manual_seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
samples = torch.utils.data.TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
loader = torch.utils.data.DataLoader(samples, 8, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

with replicad.accelerate.prepare(accelerator, model, optimizer, loader, scheduler) as session:
    session.resume()
    for epoch in range(loader.iteration, EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    print(f"rank {accelerator.process_index} at step {session.at}, loss {loss.item():.4f}, noticed {session.noticed}", flush=True)
accelerator.end_training()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
