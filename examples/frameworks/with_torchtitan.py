"""A torchtitan configuration, kept by replicad: two lines. torchtitan finds it by its name: --module with_torchtitan --config debugmodel."""

from __future__ import annotations

from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

import replicad


def debugmodel() -> Trainer.Config:
    """torchtitan's own, with saves every 500 steps."""
    config = llama3_debugmodel()
    config.checkpoint.enable, config.checkpoint.interval = True, 500
    config.checkpoint = replicad.torchtitan.Checkpoint.Config(inner=config.checkpoint)
    return config
