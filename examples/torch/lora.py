"""Fine-tunes the small GPT of gpt.py with LoRA adapters (peft), under replicad.

    replicad run --job lora --world 2 -- python lora.py
    python lora.py --baseline --world 2

The base weights ask for no gradient, so they are copied once, when the job begins; adapters and their optimizer state are copied at every
step. `session.resume()` brings all of it back before it returns. The base model is made from a seed here; one that is read from files is
made the same way, before the session.
"""

from __future__ import annotations

import functools
import sys

import common
import gpt
from peft import LoraConfig, get_peft_model
from torch import nn


def adapted(model: nn.Module) -> nn.Module:
    """The model with its weights frozen, adapters with dropout beside its linear layers, and its last norm trained whole."""
    return get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["qkv", "out", "mlp.0", "mlp.2"], modules_to_save=["norm"]))


if __name__ == "__main__":
    sys.exit(common.main(functools.partial(gpt.train, adapt=adapted), gpt.arguments(__doc__).parse_args()))
