"""A loop over DeepSpeed's engine: ZeRO 2, bfloat16, accumulation, clipping, a schedule. Three lines are replicad's, and the loader."""

from __future__ import annotations

import deepspeed
import torch

import replicad
from replicad.data import Loader

STEPS = 20
CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "steps_per_print": 1000,
}
keep = replicad.deepspeed.keep  # before deepspeed.initialize, which builds what it has not: a build that was killed would be waited for
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
samples = torch.utils.data.TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
loader = Loader(samples, 8, seed=1)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
    lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 8, 0.5),
    config=CONFIG,
)
engine = keep(engine, data=loader)
engine.session.resume()
batches = loader.endless()
while engine.global_steps < STEPS:
    for _ in range(engine.gradient_accumulation_steps()):
        x, y = next(batches)
        loss = torch.nn.functional.cross_entropy(engine(x.bfloat16()).float(), y)
        engine.backward(loss)
        engine.step()
    if engine.global_rank == 0 and engine.global_steps % 10 == 0:
        print(f"step {engine.global_steps}: loss {loss.item():.4f}", flush=True)
print(f"rank {engine.global_rank} at step {engine.session.at}, loss {loss.item():.4f}, noticed {engine.session.noticed}", flush=True)
engine.session.leave()
engine.session.close()
torch.distributed.destroy_process_group()
