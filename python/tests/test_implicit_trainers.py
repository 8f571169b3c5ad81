"""What people hang on what a trainer holds, as its own documentation shows it, is as in an undisturbed run after a kill; nothing is named where bits are equal."""

from __future__ import annotations

import re

import pytest

from conftest import Daemon

#: Lightning 2's own idiom for what `training_epoch_end` was; a running loss that begins as None; a callback with an average; a metric; a generator of the dataset's own.
LIGHTNING = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import numpy, torch, replicad, torchmetrics
import lightning.pytorch as pl

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.rng = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)), numpy.random.default_rng(5)
    def __len__(self):
        return 40
    def __getitem__(self, i):
        return self.x[i] + torch.from_numpy(self.rng.standard_normal(8).astype("float32"))

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.mean = torch.nn.Linear(8, 4), torchmetrics.MeanMetric()
        self.training_step_outputs, self.running = [], None
    def on_train_start(self):  # as Lightning's own FSDP2 example does; every process runs it
        torch.nn.init.normal_(self.layer.weight, std=0.3)
        self.layer.bias.data.zero_()
        for group in self.optimizers().param_groups:
            group["lr"] = 0.05
    def training_step(self, batch, i):
        if self.trainer.global_step == 13 and sys.argv[1] == "kill" and keep.session.order.epoch == FIRST:
            keep.session.commit()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.layer(batch).pow(2).mean()
        self.training_step_outputs.append(loss)
        self.mean(loss.detach())
        self.running = loss.detach() if self.running is None else 0.9 * self.running + 0.1 * loss.detach()
        print("LOSS", self.trainer.global_step, loss.item().hex(), flush=True)
        return loss
    def on_train_epoch_end(self):
        print("EPOCH", self.current_epoch, torch.stack(self.training_step_outputs).mean().item().hex(), self.running.item().hex(), self.mean.compute().item().hex(), flush=True)
        self.training_step_outputs.clear()
        self.mean.reset()
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

class Average(pl.Callback):
    def on_train_start(self, trainer, module):
        self.shadow = {k: v.clone() for k, v in module.state_dict().items()}
        self.best = None
    def on_train_batch_end(self, trainer, module, out, batch, i):
        for k, v in module.state_dict().items():
            self.shadow[k].mul_(0.9).add_(v, alpha=0.1)
        if self.best is None or out["loss"] < self.best:
            self.best = float(out["loss"])
    def on_train_end(self, trainer, module):
        print("END", sum(v.sum() for v in self.shadow.values()).item().hex(), self.best.hex(), flush=True)

torch.manual_seed(1)
keep = replicad.lightning.Keep()
FIRST = 1
torch.set_num_threads(1)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=2, callbacks=[Average(), keep], **quiet)
trainer.fit(Net(), torch.utils.data.DataLoader(Samples(), 4, shuffle=True))
print("NOTICED", dict(keep.session.noticed), flush=True)
"""

HUGGINGFACE = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import torch, replicad
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling, PreTrainedTokenizerFast, Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)
words = {w: i for i, w in enumerate(["[PAD]", "[MASK]", "[UNK]", *map(str, range(61))])}
tokens = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[UNK]")), mask_token="[MASK]", pad_token="[PAD]", unk_token="[UNK]")
g = torch.Generator().manual_seed(3)
data = [{"input_ids": torch.randint(3, 64, (16,), generator=g).tolist()} for _ in range(32)]

class Mine(Trainer):
    worst = None
    def compute_loss(self, model, inputs, return_outputs=False, **more):
        loss = super().compute_loss(model, inputs, **more)
        if self.state.global_step == 9 and sys.argv[1] == "kill" and self.session.order.epoch == 1:
            self.session.commit()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.worst is None or loss > self.worst:
            self.worst = loss.item()
        print("LOSS", self.state.global_step, loss.item().hex(), self.worst.hex(), flush=True)
        return loss

class Average(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **more):
        torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight, std=0.1)  # every process runs it
        self.shadow = model.bert.embeddings.LayerNorm.weight.detach().clone()
    def on_step_end(self, args, state, control, model=None, **more):
        self.shadow.mul_(0.9).add_(model.bert.embeddings.LayerNorm.weight.detach(), alpha=0.1)
    def on_train_end(self, *a, **k):
        print("END", self.shadow.sum().item().hex(), flush=True)

torch.manual_seed(1)
quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no"}
args = TrainingArguments(sys.argv[2], num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True, logging_steps=1, learning_rate=0.01, **quiet)
small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **small))
trainer = Mine(model=model, args=args, train_dataset=data, data_collator=DataCollatorForLanguageModeling(tokens, mlm_probability=0.3, seed=42))
trainer = replicad.huggingface.keep(trainer)
trainer.add_callback(Average())
trainer.train()
print("NOTICED", dict(trainer.session.noticed), flush=True)
"""


@pytest.mark.parametrize("program", [LIGHTNING, HUGGINGFACE], ids=["lightning", "huggingface"])
def test_a_killed_run_is_the_same(daemon: Daemon, program: str, tmp_path: object) -> None:
    def run(how: str) -> tuple[dict[str, str], list[str]]:
        out = daemon.run(program, how, str(tmp_path)).done()
        assert set(re.findall(r"^NOTICED (.*)$", out, re.M)) == {"{}"}, out
        assert "is not the same run" not in out, out
        assert ("recovered: step" in out) == bool(how), out
        return dict(re.findall(r"^LOSS (\d+) (.*)$", out, re.M)), sorted(set(re.findall(r"^(?:EPOCH|END) .*$", out, re.M)))

    want = run("")
    assert len(want[0]) in (16, 20)
    assert want[1]
    assert run("kill") == want
