"""`replicad ckpt export` and `import`, judged by the programs that read and write these formats: transformers, safetensors, and torch, also the
oldest one where `make py-compat` has put it."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors import torch as safetensors

from conftest import ROOT, Daemon
from formats_judge import judge, same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process saves here

OLDEST = ROOT / ".venv-compat" / "3.10-torch-2.6.0" / "bin" / "python"
TYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex64"]


def replicad(*args: object, code: int = 0) -> str:
    """What a command prints."""
    done = subprocess.run([ROOT / "bin" / "replicad", "ckpt", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == code, f"{args}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def every_type() -> dict[str, torch.Tensor]:
    """Each type as a matrix, a number and nothing."""
    out = {}
    for d in TYPES:
        t = torch.randint(0, 2 if d == "bool" else 100, (5, 7)).to(getattr(torch, d))
        out |= {f"matrix.{d}": t, f"number.{d}": t[1, 2].clone(), f"nothing.{d}": torch.empty(3, 0, dtype=t.dtype)}
    return out


def test_every_type_in_every_format(tmp_path: Path) -> None:
    want = every_type()
    nested = {"model": want, "parameter": torch.nn.Parameter(torch.randn(3, 1, 2)), "step": 7, "lr": [0.1]}
    torch.save(nested, tmp_path / "in.pt")
    flat = {**{f"model.{k}": v for k, v in want.items()}, "parameter": nested["parameter"].detach()}
    torch.save(flat, tmp_path / "want.pt")
    (tmp_path / "store").mkdir()
    assert 'left out, as "step"' in replicad("import", tmp_path / "in.pt", "--to", tmp_path / "store", "--job", "in")
    for to in ("pt", "dcp", "safetensors"):
        replicad("export", tmp_path / "store" / "in", tmp_path / to, "--to", to)
    files = [str(tmp_path / "want.pt"), str(tmp_path / "pt" / "state.pt"), str(tmp_path / "dcp")]
    judge(*files)
    if OLDEST.exists():
        done = subprocess.run([OLDEST, Path(__file__).with_name("formats_judge.py"), *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "torch 2.6" in done.stdout
    same(safetensors.load_file(tmp_path / "safetensors" / "state.safetensors"), flat, "safetensors")


def test_dcp_of_torch(tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": every_type(), "step": 3}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "in"))
    (tmp_path / "store").mkdir()
    assert '1 values that are no tensors were left out, as "step"' in replicad("import", tmp_path / "in", "--to", tmp_path / "store", "--job", "in")
    replicad("export", tmp_path / "store", tmp_path / "out", "--to", "pt", "--only", "model")
    same(torch.load(tmp_path / "out" / "state.pt", weights_only=True), state["model"], "DCP")


class Hook:
    """What runs when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.path,)


def test_no_pickle_is_executed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    torch.save({"w": torch.ones(3), "hook": Hook(str(tmp_path / "ran"))}, tmp_path / "in.pt")
    dcp.save({"w": torch.ones(3)}, storage_writer=dcp.FileSystemWriter(tmp_path / "in"))
    metadata = dcp.FileSystemReader(tmp_path / "in").read_metadata()
    metadata.planner_data = Hook(str(tmp_path / "ran"))
    (tmp_path / "in" / ".metadata").write_bytes(pickle.dumps(metadata))
    printed = replicad("import", tmp_path / "in", "--to", tmp_path / "store", "--job", "in", code=1)
    assert '"posix.mkdir"' in printed, printed
    assert "nothing of it was executed" in printed
    assert list((tmp_path / "store").iterdir()) == []
    printed = replicad("import", tmp_path / "in.pt", "--to", tmp_path / "store", "--job", "in")
    assert '1 objects of "posix.mkdir" were left out with what is in them, and nothing of them was executed, as "hook"' in printed, printed
    assert "1 tensors, 12 B" in printed
    assert not (tmp_path / "ran").exists()


#: A tiny model of transformers.
TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}


def test_folders_of_transformers(tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    assert len(list((tmp_path / "in").glob("*.safetensors"))) > 1
    (tmp_path / "store").mkdir()
    assert 'each name got "model." before it' in replicad("import", tmp_path / "in", "--to", tmp_path / "store", "--job", "in")
    replicad("export", tmp_path / "store", tmp_path / "out", "--to", "hf")
    model.config.save_pretrained(tmp_path / "out")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    same(again.state_dict(), model.state_dict(), "from_pretrained")


#: Trains the tiny model, its first layer frozen, and leaves its weights in a file.
TRAIN = f"""
import sys
import torch, transformers, replicad

torch.manual_seed(3)
config = transformers.LlamaConfig(**{TINY})
model = transformers.LlamaForCausalLM(config)
for p in model.model.layers[0].parameters():
    p.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.1)
with replicad.Session(model, optimizer) as session:
    session.resume()
    for step in session.steps(2):
        with session.step():
            ids = torch.randint(0, 64, (2, 8))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    session.save(wait=True)
    torch.save(model.state_dict(), sys.argv[1] + "/trained.pt")
    config.save_pretrained(sys.argv[1] + "/config")
"""


def test_a_trained_model(own_daemon: Daemon, tmp_path: Path) -> None:
    daemon, name = own_daemon, f"formats-{os.getpid()}"
    daemon.run(TRAIN, str(tmp_path), name=name, flags=("--durable-every", "0")).done()
    where = f"{daemon.dir}/replicad-dev/durable/{name}"
    weights = torch.load(tmp_path / "trained.pt", weights_only=True)
    replicad("export", where, tmp_path / "hf", "--to", "hf")
    (tmp_path / "config" / "config.json").rename(tmp_path / "hf" / "config.json")
    same(transformers.LlamaForCausalLM.from_pretrained(tmp_path / "hf").state_dict(), weights, "from_pretrained")
    replicad("export", where, tmp_path / "pt", "--to", "pt")
    state = torch.load(tmp_path / "pt" / "state.pt", weights_only=True, mmap=True)
    same({k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")}, weights, "pt")
    assert "optim.model.lm_head.weight.exp_avg" in state
    replicad("export", where, tmp_path / "trained", "--to", "hf", "--only", "trained")
    same(safetensors.load_file(tmp_path / "trained" / "model.safetensors"), {k: v for k, v in weights.items() if ".layers.0." not in k}, "trained")
