"""Does a plain checkpoint of a transformers.Trainer go on as its run did? `python check_huggingface.py`; no daemon is needed. docs/testing.md says what it prints."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from replicad.testing import check_trainer, of_huggingface


class Masked(torch.utils.data.Dataset):
    """Hides other tokens of a sample each time."""

    def __init__(self, n):
        self.tokens = torch.randint(1, 32, (n, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        tokens = self.tokens[i]
        return {"input_ids": tokens.masked_fill(torch.rand(8) < 0.2, 0), "labels": tokens}


def make_trainer(folder):
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    args = TrainingArguments(
        folder, num_train_epochs=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=2, logging_steps=1,
        use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True,
    )
    return of_huggingface(Trainer(model=model, args=args, train_dataset=Masked(20), eval_dataset=Masked(4)))


if __name__ == "__main__":
    print(check_trainer(make_trainer))
