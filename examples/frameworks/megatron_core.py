"""A loop of one's own over Megatron-core: its wrapper, distributed optimizer and scheduler. Two lines are replicad's."""

from __future__ import annotations

import os
import types

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.num_microbatches_calculator import get_num_microbatches, init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer import TransformerConfig

import replicad

ITERATIONS, MICRO = 20, 4
replicad.wait_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group()
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
parallel_state.initialize_model_parallel()
init_num_microbatches_calculator(rank, None, 2 * MICRO * world, MICRO, world)
torch.manual_seed(1)

bf16 = {"bf16": True, "params_dtype": torch.bfloat16}
config = TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=1, **bf16)
network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to("cuda", torch.bfloat16)
model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), network)
optimizer = get_megatron_optimizer(OptimizerConfig(lr=0.01, min_lr=0.001, use_distributed_optimizer=True, **bf16), [model])
scheduler = OptimizerParamScheduler(
    optimizer, init_lr=0.0, max_lr=0.01, min_lr=0.001, lr_warmup_steps=16, lr_decay_steps=400, lr_decay_style="cosine",
    start_wd=0.01, end_wd=0.01, wd_incr_steps=400, wd_incr_style="constant",
)  # fmt: skip
samples = torch.randn(1000, 16, generator=torch.Generator().manual_seed(1))

args = types.SimpleNamespace(iteration=0, consumed_train_samples=0, train_iters=ITERATIONS)
session = replicad.megatron.keep(model, optimizer, scheduler, counters=args)
for iteration in range(args.iteration, ITERATIONS):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    for micro in range(get_num_microbatches()):
        first = args.consumed_train_samples + (micro * world + rank) * MICRO
        loss = model(samples[first : first + MICRO].to("cuda", torch.bfloat16)).float().square().mean()
        (loss / get_num_microbatches()).backward()
    model.finish_grad_sync()
    updated, norm, _ = optimizer.step()
    if updated:
        scheduler.step(increment=get_num_microbatches() * MICRO * world)
    args.consumed_train_samples += get_num_microbatches() * MICRO * world
print(f"rank {rank} at step {session.at} after {args.consumed_train_samples} samples, loss {loss.item():.4f}, noticed {session.noticed}", flush=True)
session.leave()
session.close()
torch.distributed.destroy_process_group()
