"""A session that grows inside of `replicad.inprocess.wrap`: a survivor goes on in its process, or ends it where it holds what the job goes back over."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

from conftest import Daemon

# What grows at step 6; where rank 1 fails once, and how; a name for files. Momentum that is switched on at step 6 makes state at step 7.
PROGRAM = """
import copy, hashlib, os, pathlib, signal, sys, time
import torch, replicad
from replicad.data import Loader

what, place, how, name = sys.argv[1:]
mark, asks, has = (pathlib.Path(name + end) for end in (".mark", ".asks", ".has"))
rank = int(os.environ["REPLICAD_RANK"])


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
session = replicad.Session({"model": model, "teacher": teacher}, optimizer, data=loader, extra={"rows": rows}, staging=what == "staged")
print("START", rank, flush=True)
grow, seal = session.rank.grow, session.rank.seal_initial


def sealing():
    reached("decided", session.at)
    seal()


def growing(*args):
    if rank == 0:
        asks.touch()
    try:
        grow(*args)
    except replicad.Fenced:
        print("FENCED", rank, "in its growth", flush=True)
        raise


def reached(at, step):
    if place != f"{at}:{step}" or mark.exists():
        return
    if rank != 1:
        has.touch()
        return
    while at == "follows" and not asks.exists():  # the other one is about to wait for this one
        time.sleep(0.001)
    while at in ("updated", "decided") and not has.exists():  # the other one has what the step gives it, or the arena that it is to give up
        time.sleep(0.001)
    mark.touch()
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("of rank 1, once")


session.rank.grow, session.rank.seal_initial, session.reached = growing, sealing, reached


@replicad.inprocess.wrap(session)
def train(call):
    start, batches = session.resume(), loader.endless()
    print("RUN", rank, call.runs, "from", int(start), flush=True)
    for step in session.steps(14):
        (x,) = next(batches)
        optimizer.zero_grad()
        (model(x).square().mean() + (head(back(x)) - teacher(back(x))).square().mean()).backward()
        reached("backward", step)
        with session.step():
            optimizer.step()
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
        if step == 5:
            session.commit()
        reached("follows", step)
    session.leave()


train()
digest = hashlib.sha256()
for m in (model, teacher):
    for t in m.state_dict().values():
        digest.update(t.numpy().tobytes())
for p in model.parameters():
    digest.update(bytes([p.requires_grad]))
    for k, t in sorted(optimizer.state.get(p, {}).items()):
        digest.update(t.numpy().tobytes())
print("END", rank, digest.hexdigest()[:16], len(rows.all), [len(g["params"]) for g in optimizer.param_groups], flush=True)
session.close()
"""

STALE = "That was in a step that the job goes back over: this process ends, and a new one takes its place"


def ran(daemon: Daemon, *args: str) -> tuple[list[str], str]:
    """How each rank ended, and all that was written."""
    name = "-".join(("inprocess", *args)).replace(":", "-")
    job = daemon.run(PROGRAM, *args, str(daemon.dir / name), world=2)
    job.done()
    out = str(job.out)
    return sorted(re.findall(r"^END .*$", out, re.M)), out


@pytest.fixture(scope="module")
def straight(daemon: Daemon) -> Callable[[str], list[str]]:
    """How ranks end whom nothing happens to."""

    @functools.cache
    def ends(what: str) -> list[str]:
        ends, out = ran(daemon, what, "none", "none")
        assert len(ends) == out.count("START") == out.count("RUN") == 2, out
        assert "the job keeps more from here on, in epoch 2: " in out
        return ends

    return ends


def cases(*also: str, short: set[str]) -> pytest.MarkDecorator:
    """Each of ``also``, with rank 1 killed and with an exception raised in it. Those that are not in ``short`` show the same on another way."""
    of = [f"{x} {how}" for x in also for how in ("killed", "raised")]
    assert short <= set(of)
    return pytest.mark.parametrize("case", [pytest.param(x, marks=() if x in short else pytest.mark.long) for x in of])


def starts(out: str) -> tuple[int, int]:
    """How many processes each rank had."""
    return out.count("START 0"), out.count("START 1")


@cases("thawed", "teacher", "staged", "extra", short={"thawed killed", "thawed raised", "teacher killed", "extra raised"})
def test_fenced_in_its_growth(case: str, daemon: Daemon, straight: Callable[[str], list[str]]) -> None:
    """The other one never came to grow: who waited for it goes back in its process, has what it had before, and grows again."""
    what, how = case.split()
    ends, out = ran(daemon, what, "follows:6", how)
    assert ends == straight(what), out
    assert "FENCED 0 in its growth" in out
    assert re.findall(r"^RUN 0 .*$", out, re.M) == ["RUN 0 1 from 0", "RUN 0 2 from 5"], out
    assert starts(out) == (1, 2 if how == "killed" else 1), out


@cases(
    *("group follows:6", "group updated:6", "momentum follows:7", "momentum updated:7"),
    short={"group follows:6 killed", "group updated:6 raised", "momentum follows:7 raised"},
)
def test_goes_back_over_the_step_that_added(case: str, daemon: Daemon, straight: Callable[[str], list[str]]) -> None:
    """The process has what a step gave it that is gone, and can't be rid of it: it ends, and a new one does the step again."""
    what, place, how = case.split()
    ends, out = ran(daemon, what, place, how)
    assert ends == straight(what), out
    assert starts(out) == (2, 2), out
    assert "StaleProgram: optim" in out and STALE in out, out
    assert "Mismatch" not in out, out


@cases("group", "thawed", "teacher", short={"thawed killed"})
def test_fenced_once_it_is_decided(case: str, daemon: Daemon, straight: Callable[[str], list[str]]) -> None:
    """The job takes the growth back, and the daemons end the processes that have it."""
    what, how = case.split()
    ends, out = ran(daemon, what, "decided:6", how)
    assert ends == straight(what), out
    assert starts(out) == (2, 2) and out.count("from 5") == 2, out


@cases("group", "thawed", "momentum", "teacher", "extra", short={"group killed", "thawed raised", "teacher killed"})
def test_a_fault_after_a_growth(case: str, daemon: Daemon, straight: Callable[[str], list[str]]) -> None:
    """A survivor that has grown goes on with what it has; a process that comes has it by the recipe."""
    what, how = case.split()
    ends, out = ran(daemon, what, "backward:9", how)
    assert ends == straight(what), out
    assert starts(out) == (1, 2 if how == "killed" else 1), out
    again = [int(n) for n in re.findall(r"^RUN 0 2 from (\d+)$", out, re.M)]
    assert len(again) == 1 and again[0] >= 6, out
