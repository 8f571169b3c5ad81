"""Hugging Face's Trainer, with accumulation, a schedule, evaluations and saves. One call is replicad's: keep()."""

from __future__ import annotations

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import replicad

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="saves")
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()

torch.manual_seed(1)
tokens = torch.arange(16).repeat(200, 1) * 3 % 61 + torch.randint(3, (200, 1))
samples = [{"input_ids": t, "labels": t} for t in tokens]
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    output_dir=args.out, use_cpu=True, num_train_epochs=args.epochs, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=0.01, logging_steps=5,
    eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, report_to=[], disable_tqdm=True,
)  # fmt: skip
trainer = replicad.huggingface.keep(Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=samples[:160], eval_dataset=samples[160:]))
result = trainer.train()
print(f"rank {arguments.process_index} at step {result.global_step}, best {trainer.state.best_metric:.3f}, noticed {trainer.session.noticed}", flush=True)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
