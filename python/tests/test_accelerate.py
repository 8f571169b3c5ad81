"""A loop of accelerate is the same run whether nobody disturbs it, or its processes are killed."""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate", reason="accelerate is missing: see python/requirements-frameworks.txt")

from conftest import PATIENCE, Daemon, environment, quick

# 13 batches for each rank in an epoch, two of them a step, so that the last step of an epoch has one. Items and dropout draw. What the loop does is written down by the loop
# itself, which knows nothing of the session; faults come by its name for a moment, once in the life of the job.
PROGRAM = """
import hashlib, os, pathlib, signal, sys
import torch, replicad
from accelerate import Accelerator

how, *faults = sys.argv[1:]
EPOCHS = 3
torch.set_num_threads(1)
torch.manual_seed(1)


class Items(torch.utils.data.Dataset):
    "Items that are augmented."
    def __init__(self, n):
        self.x = torch.randn(n, 4)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(4)


class Best:
    value = 1e9
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]


def at(moment):
    mark = pathlib.Path(f"{sys.argv[0]}-{rank}-{moment}")
    if f"{rank}:{moment}" in faults and not mark.exists():
        mark.touch()
        while session.committed < 1:
            pass
        os.kill(os.getpid(), signal.SIGKILL)


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
rank = accelerator.process_index
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8)
loader = torch.utils.data.DataLoader(Items(102), 4, shuffle=True)
held_out = torch.utils.data.DataLoader(Items(16), 4)
best = Best()
accelerator.register_for_checkpointing(best)
model, optimizer, loader, scheduler, held_out = accelerator.prepare(model, optimizer, loader, scheduler, held_out)
session = replicad.accelerate.prepare(accelerator, model, optimizer, loader, scheduler, strict=True, enabled=False if how == "plain" else None)


def evaluate():
    at(f"evaluate:{session.at}")
    model.eval()
    with torch.no_grad():
        losses = accelerator.gather_for_metrics(torch.stack([model(x).square().mean() for x in held_out]))
    model.train()
    best.value = min(best.value, losses.mean().item())
    return losses.mean().item()


def log(*words):
    print("EVENT", rank, *words, flush=True)


with session:
    session.resume()
    for epoch in range(loader.iteration, EPOCHS):
        for n, x in enumerate(loader):
            with accelerator.accumulate(model):
                loss = model(x).square().mean()
                at(f"forward{accelerator.step % 2}:{session.at + 1}")
                accelerator.backward(loss)
                at(f"backward:{session.at + 1}")
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                log("step", session.at, epoch, loss.item(), scheduler.get_last_lr())
                at(f"logged:{session.at}")
                if session.at == 9:
                    log("middle", evaluate())
        log("epoch", epoch, evaluate(), best.value)
        at(f"epoch:{session.at}")
    digest = hashlib.sha256()
    state = accelerator.unwrap_model(model).state_dict(), [v for s in optimizer.state.values() for v in s.values()], scheduler.state_dict()
    for t in [*state[0].values(), *state[1], torch.get_rng_state()]:
        digest.update(t.numpy().tobytes())
    log("end", session.at, digest.hexdigest()[:16], state[2], best.value)
    print("NOTICED", session.noticed, flush=True)
    if session.enabled:
        session.commit()
torch.distributed.destroy_process_group()
"""


def events(output: str) -> dict[int, list[str]]:
    """What each rank wrote down, without what it did twice: the later line of the same step or epoch counts."""
    out: dict[int, dict[str, str]] = {0: {}, 1: {}}
    for rank, line in re.findall(r"^EVENT (\d) (.*)", output, re.M):
        word = " ".join(line.split()[: 1 if line.startswith("middle") else 2])
        out[int(rank)].pop(word, None)
        out[int(rank)][word] = line
    return {rank: sorted(lines.values()) for rank, lines in out.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What a run says that nobody disturbs, and that keeps nothing."""
    program = tmp_path_factory.mktemp("plain") / "plain.py"
    program.write_text(quick(PROGRAM))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        env = environment(OMP_NUM_THREADS="1", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([sys.executable, str(program), "plain"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outs = [p.communicate(timeout=PATIENCE)[0] for p in ranks]
    assert [p.returncode for p in ranks] == [0, 0], outs
    return events("".join(outs))


@pytest.mark.parametrize(
    "faults",
    [
        ("0:forward1:3", "1:forward0:6", "0:evaluate:9", "1:evaluate:14"),
        ("1:backward:8", "0:logged:7", "1:logged:14", "0:epoch:14"),
    ],
)
def test_a_killed_run_is_the_same_run(faults: tuple[str, ...], daemon: Daemon, plain: dict[int, list[str]]) -> None:
    job = daemon.run(PROGRAM, "kept", *faults, world=2)
    job.done()
    out = job.printed()
    assert len(re.findall("recovered: step [1-9]", out)) == len(faults), out
    assert "NOTICED {}" in out, out
    assert events(out) == plain
    assert len(plain[0]) == 21 + 1 + 3 + 1
