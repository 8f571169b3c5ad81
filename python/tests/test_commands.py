"""What frameworks are started with: `accelerate launch`, `fabric run`, `trl sft`. A run that lost a rank leaves what the framework's own command leaves without replicad."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import PATIENCE, ROOT, Daemon, environment
from replicad.testing.conformance import port

BIN = Path(sys.executable).parent
#: SIGKILL of rank 1 in its sixth update, once. It knows nothing of replicad.
KILLS = """
import os, signal, sys
from torch.optim.optimizer import register_optimizer_step_pre_hook
updates = 0

def kills(*_):
    global updates
    updates += 1
    if updates == 6 and os.environ.get("RANK") == "1" and "FLAG" in os.environ:
        try:
            open(os.environ["FLAG"], "x").close()
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

register_optimizer_step_pre_hook(kills)

def say(line):
    os.write(1, f"\\n{line}\\n".encode())  # at once: the ranks share a pipe
"""
#: As Diffusers' scripts go: an average of the weights beside accelerate, which is stepped behind the update.
ACCELERATE = """
import torch
from accelerate import Accelerator
import replicad


class EMAModel:
    def __init__(self, parameters, decay=0.9):
        self.decay, self.optimization_step, self.shadow_params = decay, 0, [p.clone().detach() for p in parameters]

    @torch.no_grad()
    def step(self, parameters):
        self.optimization_step += 1
        for s, p in zip(self.shadow_params, parameters):
            s.sub_((1 - self.decay) * (s - p))

    def state_dict(self):
        return {"decay": self.decay, "optimization_step": self.optimization_step, "shadow_params": self.shadow_params}

    def load_state_dict(self, state):
        self.decay, self.optimization_step = state["decay"], state["optimization_step"]
        self.shadow_params = [p.clone() for p in state["shadow_params"]]


torch.manual_seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
ema = EMAModel(model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), 4, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
with replicad.accelerate.prepare(accelerator, model, optimizer, loader, scheduler, extra={"ema": ema}, enabled=KEPT) as session:
    session.resume()
    for epoch in range(loader.iteration, 3):
        for (x,) in loader:
            with accelerator.accumulate(model):
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    ema.step(model.parameters())
    own = sum(p.double().sum().item() for p in ema.shadow_params)
    say(f"END {accelerator.process_index} {loss.item()!r} {own!r} {ema.optimization_step} {session.noticed}")
accelerator.end_training()
"""
FABRIC = """
import torch
from lightning.fabric import Fabric
import replicad

fabric = Fabric()
fabric.seed_everything(1, verbose=False)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), 4, shuffle=True))
session = replicad.lightning.keep(fabric, model, optimizer, loader, enabled=KEPT)
session.resume()
for epoch in range(loader.epoch if KEPT else 0, 3):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        fabric.backward(loss)
        optimizer.step()
say(f"END {fabric.global_rank} {loss.item()!r} {sum(p.double().sum().item() for p in model.parameters())!r} {fabric.world_size} {session.noticed}")
session.leave()
session.close()
"""


def printed(command: list[str], folder: Path, env: dict[str, str]) -> list[str]:
    """The last lines, in order; the status must be good."""
    done = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stdout
    return sorted(set(re.findall(r"^(?:\[.*?\]:)?(END .*)$", done.stdout, re.M)))


def replicad(daemon: Daemon, verb: str, *flags: str) -> list[str]:
    return [str(ROOT / "bin" / "replicad"), verb, *daemon.target, "--job", f"t-{uuid.uuid4().hex[:12]}", "--world", "2", "--min-copies", "1", *flags, "--"]


def written(folder: Path, program: str) -> tuple[str, str]:
    """It, kept and not."""
    for name, kept in (("kept.py", True), ("plain.py", False)):
        (folder / name).write_text(KILLS + program.replace("KEPT", str(kept)))
    return "kept.py", "plain.py"


@pytest.mark.long
def test_accelerate_launch(daemon: Daemon, tmp_path: Path) -> None:
    kept, plain = written(tmp_path, ACCELERATE)
    launch = [str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", str(port()), "--max_restarts"]
    want = printed([*launch, "0", plain], tmp_path, environment())
    assert len(want) == 2
    flag = tmp_path / "flag"
    assert printed([*replicad(daemon, "exec"), *launch, "3", kept], tmp_path, daemon.env | {"FLAG": str(flag)}) == want
    assert flag.exists()


@pytest.mark.long
def test_fabric_run(daemon: Daemon, tmp_path: Path) -> None:
    """The page's variables stand for the command's options."""
    kept, plain = written(tmp_path, FABRIC)
    want = printed([str(BIN / "fabric"), "run", "--accelerator=cpu", "--strategy=ddp", "--devices=2", f"--main-port={port()}", plain], tmp_path, environment())
    assert len(want) == 2
    page, flag = (ROOT / "docs" / "frameworks-lightning.md").read_text(), tmp_path / "flag"
    (line,) = re.findall(r"^(LT_CLI_USED=.*?) replicad run", page, re.M)
    env = daemon.env | {"FLAG": str(flag)} | dict(word.split("=") for word in line.split())
    assert printed([*replicad(daemon, "run", "--ranks", "0,1"), sys.executable, kept], tmp_path, env) == want
    assert flag.exists()


@pytest.mark.long
def test_trl_sft(daemon: Daemon, tmp_path: Path) -> None:
    """The page's program in the place of the command."""
    pytest.importorskip("trl", reason="trl is missing: `make frameworks-test` has it")
    from subject_trl import Sft, text, tokenizer

    tokenizer().save_pretrained(tmp_path / "model")
    Sft.model(None).save_pretrained(tmp_path / "model")  # type: ignore[arg-type]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(f'{{"text": "{text(i, 8)}"}}\n' for i in range(32)))
    (block,) = [b for b in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "frameworks-huggingface.md").read_text(), re.M | re.S) if "make_parser" in b]
    (tmp_path / "sft.py").write_text(KILLS + block)
    (tmp_path / "plain.py").write_text("import runpy, trl.scripts.sft\nrunpy.run_module('trl.scripts.sft', run_name='__main__')\n")
    options = {
        "model_name_or_path": "model", "dataset_name": "data", "max_steps": 10, "per_device_train_batch_size": 1, "logging_steps": 1, "learning_rate": 0.01, "use_cpu": "true",
        "save_strategy": "'no'", "report_to": "none", "bf16": "false", "seed": 1,
    }  # fmt: skip
    for name in ("plain", "kept"):
        (tmp_path / f"{name}.yaml").write_text("".join(f"{key}: {value}\n" for key, value in {**options, "output_dir": name}.items()))
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port())]
    printed([*torchrun, "plain.py", "--config", "plain.yaml"], tmp_path, environment(**offline))
    flag = tmp_path / "flag"
    printed([*replicad(daemon, "run", "--ranks", "0,1"), sys.executable, "sft.py", "--config", "kept.yaml"], tmp_path, daemon.env | offline | {"FLAG": str(flag)})
    assert flag.exists()
    assert (tmp_path / "kept" / "model.safetensors").read_bytes() == (tmp_path / "plain" / "model.safetensors").read_bytes()
