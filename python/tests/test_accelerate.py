"""A loop of accelerate is the same run whether nobody disturbs it, or its processes are killed."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate", reason="accelerate is missing: see python/requirements-frameworks.txt")

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

import replicad
from conftest import PATIENCE, ROOT, Daemon, environment, quick
from replicad import Invalid, Mismatch, SessionState, Unsupported
from replicad._torch.memory import Memory
from replicad._torch.objects import Objects
from replicad._torch.staging import Staging
from replicad._torch.trained import Trained
from replicad.adapters.accelerate import Place
from replicad.data import Loader

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
        if how == "inprocess":
            raise ValueError(moment)
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


def evaluate(model):
    at(f"evaluate:{session.at}")
    model.eval()
    with torch.no_grad():
        losses = accelerator.gather_for_metrics(torch.stack([model(x).square().mean() for x in held_out]))
    model.train()
    best.value = min(best.value, losses.mean().item())
    return losses.mean().item()


def log(*words):
    print("EVENT", rank, *words, flush=True)


@replicad.inprocess.wrap(session, enabled=how == "inprocess")
def train(call):
    session.resume()
    parallel = replicad.accelerate.again(accelerator, session, model) if how == "inprocess" else model
    for epoch in range(loader.iteration, EPOCHS):
        for n, x in enumerate(loader):
            with accelerator.accumulate(parallel):
                loss = parallel(x).square().mean()
                at(f"forward{accelerator.step % 2}:{session.at + 1}")
                accelerator.backward(loss)
                at(f"backward:{session.at + 1}")
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(parallel.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                log("step", session.at, epoch, loss.item(), scheduler.get_last_lr())
                at(f"logged:{session.at}")
                if session.at == 9:
                    log("middle", evaluate(parallel))
        log("epoch", epoch, evaluate(parallel), best.value)
        at(f"epoch:{session.at}")
    digest = hashlib.sha256()
    state = accelerator.unwrap_model(model).state_dict(), [v for s in optimizer.state.values() for v in s.values()], scheduler.state_dict()
    for t in [*state[0].values(), *state[1], torch.get_rng_state()]:
        digest.update(t.numpy().tobytes())
    log("end", session.at, digest.hexdigest()[:16], state[2], best.value)
    print("NOTICED", session.noticed, flush=True)
    session.leave()


with session:
    train()
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
    ("how", "faults"),
    [
        ("killed", ("0:forward1:3", "1:forward0:6", "0:evaluate:9", "1:evaluate:14")),
        ("inprocess", ("0:forward0:3", "1:forward1:6", "0:evaluate:9", "1:evaluate:14", "0:logged:17", "1:epoch:21")),
        pytest.param("killed", ("1:backward:8", "0:logged:7", "1:logged:14", "0:epoch:14"), marks=pytest.mark.long),
    ],
)
def test_a_broken_run_is_the_same_run(how: str, faults: tuple[str, ...], daemon: Daemon, plain: dict[int, list[str]]) -> None:
    job = daemon.run(PROGRAM, how, *faults, world=2)
    job.done()
    out = job.printed()
    assert len(re.findall("recovered: step [1-9]", out)) == len(faults), out
    assert "NOTICED {}" in out, out
    assert events(out) == plain
    assert len(plain[0]) == 21 + 1 + 3 + 1


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Items(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((2,), float(i))


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class Meter:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def test_what_can_not_be_kept_is_refused(accelerator: Accelerator) -> None:
    prepare = replicad.accelerate.prepare
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Items(), 2)
    for o in (model, optimizer, loader, torch.optim.lr_scheduler.StepLR(optimizer, 3), 3):
        with pytest.raises(Invalid, match=f"{type(o).__name__} is not what accelerator.prepare"):
            prepare(accelerator, o, enabled=False)
    for loader, text in (
        (torch.utils.data.DataLoader(Stream(), 2), "an IterableDataset"),
        (torch.utils.data.DataLoader(Items(), batch_size=None), "batch_size=None"),
    ):
        with pytest.raises(Unsupported, match=text + ".*replicad.data.Loader"):
            prepare(accelerator, accelerator.prepare(loader), enabled=False)
    prepare(accelerator, accelerator.prepare(model), Loader(Items(), 2), enabled=False)
    with pytest.raises(Invalid, match=r"register_for_checkpointing\(Meter\) after replicad.accelerate.prepare"):
        accelerator.register_for_checkpointing(Meter())


def test_a_session_that_was_made_before_names_prepare(accelerator: Accelerator) -> None:
    """On the CPU accelerate has all of a model moved to "cpu:0" where there are several ranks, and an optimizer's state loaded anew in any case."""
    with_buffers, model = torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    moved: list[tuple[dict[str, Any], Callable[[], object]]] = [
        ({"model": with_buffers}, lambda: with_buffers.to("cpu:0")),
        ({"model": model}, lambda: model.to("cpu:0")),
        ({"model": model, "optimizer": optimizer}, lambda: accelerator.prepare(optimizer)),
    ]
    for given, move in moved:
        objects = Objects(given, lambda name: False, False)
        trained = Trained(objects, Memory(Staging(objects.leaves, False, {})))
        move()
        with pytest.raises(Mismatch, match=r"call replicad.accelerate.prepare\(...\) after it"):
            trained.check_places()


def test_the_same_loop_alone(accelerator: Accelerator) -> None:
    """The session is off: steps are counted where accelerate updates."""
    accelerator.gradient_accumulation_steps = 3
    model = torch.nn.Linear(2, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(Items(), 2, shuffle=True))
    with replicad.accelerate.prepare(accelerator, model, optimizer, loader, enabled=False) as session:
        session.resume()
        at = []
        for epoch in range(loader.iteration, 2):
            for x in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(x).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                at.append((epoch, session.at))
    assert at == [(0, 0), (0, 0), (0, 1), (0, 2), (1, 2), (1, 2), (1, 3), (1, 4)]


def test_an_iterator_that_a_resume_has_outlived_moves_nothing(accelerator: Accelerator) -> None:
    """A loop that stays in the process makes its next iterator, and drops the one before by that."""
    loader = accelerator.prepare(torch.utils.data.DataLoader(Items(), 2))
    place = Place(loader)
    it = iter(loader)
    given = [next(it) for _ in range(3)]
    state = place.state_dict()
    assert (len(given), state["used"]) == (3, 3)
    place.load_state_dict(state)
    with pytest.raises(SessionState, match=r"begun before session.resume\(\): .*iterate it anew"):
        next(it)
    place.load_state_dict(state)
    it = iter(loader)
    assert next(it)[:, 0].tolist() == [6, 7]
    left = iter(loader)  # as it is left by a loop that breaks off
    next(left)
    del left
    assert place.state_dict()["used"] == 0


def test_an_iterator_that_is_dropped_behind_a_resume_moves_nothing(accelerator: Accelerator) -> None:
    loader = accelerator.prepare(torch.utils.data.DataLoader(Items(), 2))
    place = Place(loader)
    it = iter(loader)
    given = [next(it) for _ in range(3)]
    place.load_state_dict(place.state_dict())
    it = iter(loader)
    assert len(given) == 3
    assert next(it)[:, 0].tolist() == [6, 7]


def test_two_updates_with_one_batch_are_one_step(accelerator: Accelerator) -> None:
    """A restart between them would go on with the next batch."""
    model = torch.nn.Linear(2, 1)
    one, other = (torch.optim.SGD([p], lr=0.1) for p in model.parameters())
    model, one, other, loader = accelerator.prepare(model, one, other, torch.utils.data.DataLoader(Items(), 2))
    with replicad.accelerate.prepare(accelerator, model, one, other, loader, enabled=False) as session:
        session.resume()
        for batch in loader:
            accelerator.backward(model(batch).sum())
            with session.step():
                one.step()
                other.step()
        assert session.at == 4
        for batch in loader:
            accelerator.backward(model(batch).sum())
            one.step()
        assert session.at == 8
        before = model.bias.item()
        with pytest.raises(SessionState, match=r"SGD.step\(\) is the second step with one batch.*put both updates into one `with session.step\(\):`"):
            other.step()
        assert (session.at, model.bias.item()) == (8, before)


EXAMPLE = ROOT / "examples" / "frameworks" / "with_accelerate.py"


def test_the_page_quotes_the_example() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text().split("\n## accelerate\n")[1].split("\n## ")[0]
    program = {line.strip() for line in EXAMPLE.read_text().splitlines()}
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert {line.strip() for line in block.splitlines()} - {"..."} <= program
    assert len(page.split()) <= 300


@pytest.mark.parametrize("world", [0, pytest.param(2, marks=pytest.mark.long)])
def test_the_example(world: int, daemon: Daemon, tmp_path: Path) -> None:
    """Without a launcher, and with one."""
    if world:
        out = daemon.run(EXAMPLE.read_text(), world=world).done()
    else:
        (tmp_path / EXAMPLE.name).write_text(EXAMPLE.read_text())
        done = subprocess.run([sys.executable, EXAMPLE.name], env=environment(OMP_NUM_THREADS="1"), cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        out = done.stdout
    assert len(re.findall(rf"^rank \d at step {24 if world else 48}, loss .*, noticed {{}}$", out, re.M)) == max(1, world), out
