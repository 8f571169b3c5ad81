"""A session whose program gets more to keep on its way: the job takes it up at an epoch of its own, without a restart, and a later process has it too."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

import torch
from torch import nn

from conftest import Daemon
from replicad import Mismatch
from replicad._torch.grown import MOST, Grown
from replicad._torch.memory import Memory
from replicad._torch.objects import Objects
from replicad._torch.optimizers import undoing
from replicad._torch.staging import Staging
from replicad._torch.trained import Trained
from replicad.errors import Corrupt, Unsupported

# The first argument says what grows at step 6, the second where the program is killed once.
PROGRAM = """
import copy, hashlib, os, pathlib, signal, sys
import torch, replicad
from replicad.data import Loader

what, fault, mark = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
rank = int(os.environ["REPLICAD_RANK"])


def reached(place, step):
    if rank == 1 and fault == f"{place}:{step}" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Rows:
    def __init__(self):
        self.all = []
    def state_dict(self):
        return {"all": list(self.all)}
    def load_state_dict(self, state):
        self.all = list(state["all"])


torch.set_num_threads(1)
torch.manual_seed(1)
back, head = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)), torch.nn.Linear(8, 1)
model, teacher = torch.nn.Sequential(back, head), copy.deepcopy(head).requires_grad_(False)
if what in ("group", "thawed"):
    back.requires_grad_(False)
given = head.parameters() if what == "group" else model.parameters()
optimizer = torch.optim.SGD(given, lr=0.05) if what == "momentum" else torch.optim.AdamW(given, lr=0.05)
rows = Rows()
loader = Loader(torch.utils.data.TensorDataset(torch.randn(64, 4)), 4, seed=1, rank=0, world=1)
staging = {"staging": True} if what == "staged" else {}
session = replicad.Session({"model": model, "teacher": teacher}, optimizer, data=loader, extra={"rows": rows}, **staging)
session.reached = reached
start, batches = session.resume(), loader.endless()
print("START", int(start), len(optimizer.param_groups), flush=True)
if what == "group" and start >= 6:  # as programs do that were written to resume: the job has it already
    optimizer.add_param_group({"params": back.parameters(), "lr": 0.3})
for step in session.steps(14):
    (x,) = next(batches)
    optimizer.zero_grad()
    (model(x).square().mean() + (head(back(x)) - teacher(back(x))).square().mean()).backward()
    reached("backward", step)
    with session.step():
        optimizer.step()
        if step >= 6 and what == "uncounted":  # torch counts no change by way of .data
            for t, p in zip(teacher.parameters(), head.parameters()):
                t.data.mul_(0.9).add_(p.data, alpha=0.1)
        if step >= 6 and what in ("teacher", "staged"):
            with torch.no_grad():
                for t, p in zip(teacher.parameters(), head.parameters()):
                    t.lerp_(p, 0.1)
        if step == 6 and what == "momentum":
            optimizer.param_groups[0]["momentum"] = 0.9
        if step == 6 and what in ("group", "thawed"):
            back.requires_grad_(True)
        if step == 6 and what == "group":
            optimizer.add_param_group({"params": back.parameters(), "lr": 0.01})
    if what == "extra":
        rows.all = rows.all + [0.5] * 200 * step
digest = hashlib.sha256()
for m in (model, teacher):
    for t in m.state_dict().values():
        digest.update(t.numpy().tobytes())
for p in model.parameters():
    for k, t in sorted(optimizer.state.get(p, {}).items()):
        digest.update(t.numpy().tobytes())
print("END", digest.hexdigest()[:16], len(rows.all), [len(g["params"]) for g in optimizer.param_groups], flush=True)
assert not session.noticed, session.noticed
session.leave()
session.close()
"""


#: What test_grows_inprocess.py shows as well.
IN_PROCESS_TOO = ("thawed", "teacher")


@pytest.mark.parametrize("what", ["group", "momentum", "uncounted", "extra", "staged", *(pytest.param(what, marks=pytest.mark.long) for what in IN_PROCESS_TOO)])
def test_what_grows_is_taken_up(what: str, daemon: Daemon) -> None:
    """The same bits as without a fault, killed before, at and after the growth; only the killed rank and who trained with it start again."""
    straight = daemon.run(PROGRAM, what, "none", "none", world=2).done()
    end = re.compile(r"^END .*$", re.M)
    assert straight.count("START") == 2, straight  # nobody was started again
    assert "the job keeps more from here on, in epoch 2: " in straight
    for fault in {"group": ("updated:6", "window:7", "backward:11"), "momentum": ("backward:9",), "teacher": ("window:7",)}.get(what, ("backward:11",)):
        killed = daemon.run(PROGRAM, what, fault, str(daemon.dir / f"{what}-{fault}".replace(":", "-")), world=2).done()
        assert sorted(set(end.findall(straight))) == sorted(set(end.findall(killed))), (fault, killed)
        assert killed.count("START") > 2, fault


ALONE = """
import os, sys
import torch, replicad

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
model[0].requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
session = replicad.Session(model, optimizer, staging=False)
session.resume()
for step in session.steps(3):
    with session.step():
        if step == 2 and os.environ["REPLICAD_RANK"] == "0":
            model[0].requires_grad_(True)
session.leave()
"""


def test_a_growth_of_one_rank_alone_is_refused(daemon: Daemon) -> None:
    job = daemon.run(ALONE, world=2)
    refused = job.until("The job can't take it up at step 2")
    assert "model.0.weight, model.0.bias asked for no gradient" in refused
    assert "without asking to grow at step 2" in refused or "has finished, and does not ask to grow at step 2" in refused
    job.kill()


def made(**changes: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[1].parameters())
    if changes.get("grown"):
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": model[0].parameters()})
    return model, optimizer


def objects(model: nn.Module, optimizer: torch.optim.Optimizer, grown: Grown | None = None) -> Objects:
    return Objects({"model": model, "optimizer": optimizer}, lambda name: False, False, grown)


def test_a_recipe_makes_of_a_new_program_what_the_old_one_had() -> None:
    model, optimizer = made()
    before = objects(model, optimizer)
    trained = Trained(before, Memory(Staging([], False, {})))
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters()})
    grown = trained.grown(Grown(), [])
    assert (grown.window, grown.asks) == (["model.0.weight", "model.0.bias"],) * 2
    assert grown.groups == {"optim": [["model.0.weight", "model.0.bias"]]}
    packed = Grown.unpack(grown.pack())
    assert packed == grown
    old, new = before.grew(grown), objects(*made(), packed)
    assert [(x.name, x.changes, x.tensor.shape) for x in old.leaves] == [(x.name, x.changes, x.tensor.shape) for x in new.leaves]
    assert {x.name: x.changes for x in new.leaves}["model.0.weight"] == "window"
    again = objects(*made(grown=True), packed)  # a program that has taken it up by itself
    assert [x.name for x in again.leaves] == [x.name for x in new.leaves]


def test_a_group_without_parameters_is_no_new_one() -> None:
    """Trainers make one for what has no weight decay, of which there may be none: a new process would get it twice, and its scheduler would not fit."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW([{"params": model.parameters()}, {"params": []}])
    before = objects(model, optimizer)
    assert Trained(before, Memory(Staging([], False, {}))).grown(Grown(), []).groups == {}


@pytest.mark.parametrize("given", ["all", "some"])
def test_a_growth_that_comes_to_nothing_is_undone(given: str) -> None:
    """What moves may be in an optimizer that has state of others only, and whose groups have another order."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).requires_grad_(False)
    model[1].requires_grad_(True)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params if given == "all" else params[2:])
    before = objects(model, optimizer)
    if given == "some":
        optimizer.param_groups[0]["params"].reverse()
    had, order = {p: dict(of) for p, of in optimizer.state.items()}, list(map(id, optimizer.param_groups[0]["params"]))
    undo = undoing(before.optimizers.values())
    model[0].requires_grad_(True)
    optimizer.state[params[2]]["more"] = torch.zeros(1)
    before.grew(Grown(window=["model.0.weight"], asks=["model.0.weight"]))
    assert list(map(id, optimizer.param_groups[0]["params"])) != order or len(optimizer.state) > len(had)
    undo()
    assert list(map(id, optimizer.param_groups[0]["params"])) == order
    assert {p: list(of) for p, of in optimizer.state.items()} == {p: list(of) for p, of in had.items()}
    assert all(t is had[p][key] for p, of in optimizer.state.items() for key, t in of.items())


def test_a_recipe_of_another_program_is_refused() -> None:
    with pytest.raises(Mismatch, match=r"trains model\.9\.weight, which it has taken up on its way, and this program has none"):
        objects(*made(), Grown(window=["model.9.weight"]))


@pytest.mark.parametrize("raw", [b"x", b"x\x9c\x03\x00", Grown().pack()[:-1] + b"?", Grown(window="no").pack()])  # type: ignore[arg-type]
def test_bytes_that_are_no_recipe(raw: bytes) -> None:
    with pytest.raises(Corrupt):
        Grown.unpack(raw)


def test_too_many_names() -> None:
    with pytest.raises(Unsupported, match=f"at most {MOST}"):
        Grown(window=[torch.randint(2**62, ()).item().__str__() * 5 for _ in range(20_000)]).pack()
