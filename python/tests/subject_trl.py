"""How TRL's Trainers train under the adapter of transformers.Trainer: supervised, by preferences, and by rewards of what the model generates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import datasets
import tokenizers
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from subject_huggingface import Events, Kept

datasets.disable_progress_bars()
WORDS = [f"w{i}" for i in range(28)]


def tokenizer() -> PreTrainedTokenizerFast:
    names = ["<pad>", "<eos>", "<unk>", "<bos>", *WORDS]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", bos_token="<bos>")


def text(i: int, n: int) -> str:
    return " ".join(WORDS[(i * 7 + k * k) % len(WORDS)] for k in range(n))


class Sft(Kept):
    name = "trl, SFT"
    of: Any = SFTTrainer
    config: Any = SFTConfig

    def model(self) -> Any:
        transformers.set_seed(1)
        return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=32, n_embd=8, n_layer=2, n_head=2, bos_token_id=3, eos_token_id=1, pad_token_id=0))

    def samples(self, n: int) -> list[dict[str, Any]]:
        return [{"text": text(i, 8)} for i in range(n)]

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"bf16": False, "activation_checkpointing": False, "logging_steps": 2, "save_strategy": "no", "load_best_model_at_end": False}

    def make(self, arguments: dict[str, Any]) -> Any:
        train, held_out = (datasets.Dataset.from_list(self.samples(n)) for n in (5 * self.run.world, 4))
        more: dict[str, Any] = {"callbacks": [Events(self.run)], **self.more()}
        return self.of(model=self.model(), args=self.config(**arguments), train_dataset=train, eval_dataset=held_out, processing_class=tokenizer(), **more)


class Dpo(Sft):
    name = "trl, DPO"
    of = DPOTrainer
    config = DPOConfig

    def samples(self, n: int) -> list[dict[str, Any]]:
        return [{"prompt": text(i, 4), "chosen": text(i + 1, 4), "rejected": text(i + 2, 4)} for i in range(n)]

    def more(self) -> dict[str, Any]:
        return {"ref_model": self.model()}


class Grpo(Sft):
    """Each generation is used twice, in two steps each."""

    name = "trl, GRPO"
    of = GRPOTrainer
    config = GRPOConfig
    kept: Mapping[str, Any] = {"completions": 1 << 20}
    #: Advice of a block that is run again, whose evaluation generates: what it draws is drawn again, and the run is equal.
    noticed = ("torch's CPU generator, in an evaluation",)

    def samples(self, n: int) -> list[dict[str, Any]]:
        return [{"prompt": text(i, 4)} for i in range(n)]

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {
            "max_steps": 12, "num_generations": 2, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4,
            "num_iterations": 2, "max_completion_length": 4, "num_generations_eval": 2,
        }  # fmt: skip

    def more(self) -> dict[str, Any]:
        return {"reward_funcs": lambda completions, **_: [float(len(set(c.split()))) for c in completions]}
