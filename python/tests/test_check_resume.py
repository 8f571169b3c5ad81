"""check_resume passes a training loop that is kept whole, and names what another one forgot."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import cluster
from conftest import quick
from replicad import testing
from resumed import averaged, failing, other_yields, resized, scheduled, told, train

Forks = Callable[..., None]


def test_a_resumed_run_is_the_same_run() -> None:
    """In processes as a user's program has them. Where ``forks`` is called, ranks fork."""
    done = testing.check_resume(train, steps=5, more=3, program=str(cluster.REPLICAD), timeout=cluster.PATIENCE)
    assert (done.steps, done.resumed_at, done.source) == (8, 5, "own-ram")
    assert done.compared > 8 * 20


def test_what_is_not_kept_is_named(forks: Forks) -> None:
    forks()
    with pytest.raises(testing.Different, match=r"^samples.* differs after step 4: ") as found:
        testing.check_resume(told, steps=3, more=2, program=str(cluster.REPLICAD), timeout=cluster.PATIENCE, arguments=["--forget"])
    assert (found.value.name, found.value.step) == ("samples", 4)


def test_a_fresh_fleet_goes_on_from_the_disk(forks: Forks) -> None:
    forks()
    done = testing.check_resume(train, steps=5, more=3, source="durable", program=str(cluster.REPLICAD), timeout=cluster.PATIENCE)
    assert (done.steps, done.resumed_at, done.source) == (8, 5, "durable")
    assert done.compared > 8 * 20


@pytest.mark.long
@pytest.mark.parametrize(("world", "how"), [(2, "sharded"), (3, "")])
def test_a_state_goes_over_another_world_and_back(world: int, how: str, forks: Forks) -> None:
    forks()
    done = testing.check_resume(resized, steps=4, more=3, source="durable", world=world, program=str(cluster.REPLICAD), timeout=cluster.PATIENCE, arguments=[how] * bool(how))
    assert (done.steps, done.resumed_at, done.source) == (7, 4, "durable")
    assert done.compared > 3 * 20


@pytest.mark.long
def test_a_scheduler_that_is_forgotten_is_found_in_a_fresh_fleet(forks: Forks) -> None:
    """The learning rate is in the optimizer's state, and the scheduler's count is not: the first step is as it was, and the next one is not."""
    forks()
    with pytest.raises(testing.Different) as found:
        testing.check_resume(scheduled, steps=3, more=2, source="durable", program=str(cluster.REPLICAD), timeout=cluster.PATIENCE, arguments=["--forget"])
    assert found.value.step in (4, 5)


def test_what_a_source_may_be() -> None:
    with pytest.raises(ValueError, match=r"world=2: want at least 1, and source='durable'"):
        testing.check_resume(train, steps=1, more=1, world=2)
    with pytest.raises(ValueError, match=r"source='disk': want one of own-ram, durable"):
        testing.check_resume(train, steps=1, more=1, source="disk")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run whose steps are durable each, in a directory, and which was never disturbed."""
    from replicad.testing.check import Program, _launched
    from replicad.testing.daemon import Daemon

    daemon = Daemon(str(cluster.REPLICAD))
    folder = tmp_path_factory.mktemp("live")
    with daemon:
        train = Program.of("a test", scheduled, [])
        status, said, _ = _launched(daemon, "lm", train.command(6), cluster.PATIENCE, "--durable-every", "1")
        assert status == 0, said
        daemon.command("ckpt", "cp", "--all", str(daemon.durable), str(folder), timeout=cluster.PATIENCE).check_returncode()
    return folder


def test_a_generation_goes_on_as_its_run_did(live: Path, forks: Forks) -> None:
    forks()
    done = testing.check_generation(scheduled, f"file://{live}/lm", program=str(cluster.REPLICAD), timeout=cluster.PATIENCE, arguments=[])
    assert done.steps >= 1 and done.loaded < done.compared


def test_a_generation_without_its_scheduler_is_found(live: Path, forks: Forks) -> None:
    forks()
    with pytest.raises(testing.Different, match=r"\d+ of \d+ elements"):
        testing.check_generation(scheduled, f"{live}/lm", program=str(cluster.REPLICAD), timeout=cluster.PATIENCE, arguments=["--forget"])


@pytest.mark.parametrize(("at", "why"), [("@99", "@99: want a whole generation and a later one .* has the steps "), ("@6", "@6: want a whole generation and a later one")])
def test_a_generation_with_nothing_to_compare_it_with(live: Path, at: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        testing.check_generation(scheduled, f"{live}/lm{at}", program=str(cluster.REPLICAD), timeout=cluster.PATIENCE)


@pytest.mark.long
@pytest.mark.parametrize("staging", ["staged", "in place"])
def test_an_average_over_batch_norm_is_kept_whole(staging: str, forks: Forks) -> None:
    forks()
    done = testing.check_resume(averaged, steps=5, more=3, program=str(cluster.REPLICAD), timeout=cluster.PATIENCE, arguments=[staging])
    assert (done.steps, done.resumed_at, done.source) == (8, 5, "own-ram")


#: A program of a user's, or a module: MORE is what else stands in its loop, before the step and behind it.
PROGRAM = quick("""
import sys, torch, replicad
from replicad.data import Loader
from replicad.testing import check_resume

class Samples(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.randn(4)

def train(last, how=sys.argv[1:]):
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    workers = {"num_workers": 1, "multiprocessing_context": how[0]} if how else {}
    loader = Loader(Samples(), 4, seed=1, **workers)
    batches = loader.endless()
    with replicad.Session(model=model, optimizer=optimizer, data=loader) as session:
        for step in range(session.resume() + 1, last + 1):
            loss = model(next(batches)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with session.step():
                optimizer.step()
            yield {"loss": loss}
    batches.close()
""")
CALL = """
if __name__ == "__main__":
    print(check_resume(train, steps=2, more=1))
"""
#: A program that comes to no step, and so needs no torch.
STEPLESS = """
from replicad.testing import check_resume

def train(last): yield {}
"""


def started(*command: str, folder: Path, **env: str) -> subprocess.Popen[str]:
    """A user's program."""
    path = os.pathsep.join([str(cluster.REPLICAD.parent), os.environ["PATH"]])
    env = {k: v for k, v in cluster.environment(PATH=path, **env).items() if not k.startswith("XDG_")}
    return subprocess.Popen([sys.executable, *command], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output(*command: str, folder: Path, code: int = 0, **env: str) -> str:
    """What it printed; it must end so."""
    program = started(*command, folder=folder, **env)
    said, _ = program.communicate(timeout=cluster.PATIENCE)
    assert program.returncode == code, said
    return said


def test_workers_of_a_program_find_its_classes(tmp_path: Path) -> None:
    (tmp_path / "my-train.2.py").write_text(PROGRAM + CALL)
    assert "resumed_at=2" in output("my-train.2.py", "forkserver", folder=tmp_path)


def test_a_run_imports_a_module_of_a_package_by_its_name(tmp_path: Path) -> None:
    """With its relative imports; each run of it has the same command."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("from pathlib import Path\n")
    (package / "train.py").write_text("from .other import Path\n" + STEPLESS + "if __name__ != '__main__':\n    raise KeyError(__name__)\n" + CALL)
    assert "KeyError: 'package.train'" in output("-m", "package.train", folder=tmp_path, code=1)


@pytest.mark.long
@pytest.mark.parametrize("command", [["-m", "package.train"], ["-m", "package.train", "spawn"], ["check.py"]])
def test_a_module_of_a_package_is_imported_by_its_name(command: list[str], tmp_path: Path) -> None:
    """Its relative imports, its workers, and the main part of whoever asks."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("from pathlib import Path\n")
    (package / "train.py").write_text("from .other import Path\n" + PROGRAM + CALL)
    (tmp_path / "check.py").write_text("from package.train import check_resume, train\nprint(check_resume(train, steps=2, more=1, arguments=['spawn']))\n")
    assert "resumed_at=2" in output(*command, folder=tmp_path)


def test_a_main_part_without_a_guard_is_said(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(STEPLESS + "print(check_resume(train, steps=2, more=1))")
    assert 'put the call under `if __name__ == "__main__":`' in output("check.py", folder=tmp_path, code=1)


def test_an_exception_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again it would only be raised again. What it printed and Python still held is in the message."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with pytest.raises(RuntimeError, match=r"straight run failed(.|\n)*as far as here(.|\n)*no such sample") as found:
        testing.check_resume(failing, steps=2, more=1, program=str(cluster.REPLICAD), timeout=cluster.PATIENCE)
    assert str(found.value).count(" runs\n") == 1
    assert str(found.value).endswith("KeyError: 'no such sample'\n")


#: Its run does not end, and its time is up once it has printed something, whenever that is.
LATE = """
import pathlib, subprocess, threading, time
from replicad.testing import check_resume

said, wait = pathlib.Path("said"), subprocess.Popen.wait

def up(process, timeout=None):
    while timeout == 12 and not said.exists():
        time.sleep(0.01)
    return wait(process, 0.1 if timeout == 12 else timeout)

if __name__ != "__main__":
    print("as far as here", flush=True)
    said.touch()
    threading.Event().wait()

def train(last): yield {}

if __name__ == "__main__":
    subprocess.Popen.wait = up
    check_resume(train, steps=1, more=1, timeout=12)
"""


def test_what_a_run_printed_is_told_when_its_time_is_up(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(LATE)
    said = output("check.py", folder=tmp_path, code=1)
    assert "RuntimeError: the straight run has not ended after 12 s; " in said and "timeout=" in said and "as far as here" in said


@pytest.mark.parametrize(
    ("how", "why"), [("micro", "a yield before the end of step 2: want one"), ("sparse", "step 1 had no yield: want one"), ("less", "ended after step 3: .* up to 4")]
)
def test_other_than_one_yield_a_step_is_refused(how: str, why: str, forks: Forks) -> None:
    forks()
    with pytest.raises(RuntimeError, match=why) as found:
        testing.check_resume(other_yields, steps=3, more=1, program=str(cluster.REPLICAD), timeout=cluster.PATIENCE, arguments=[how])
    assert len(re.findall(r"process \d+ runs\b", str(found.value))) == 1


def test_a_long_temporary_folder(tmp_path: Path) -> None:
    """Sockets have no room in it."""
    long = tmp_path / ("x" * 90)
    long.mkdir()
    (tmp_path / "check.py").write_text(STEPLESS + "if __name__ != '__main__':\n    raise KeyError('as far as here')\n" + CALL)
    assert "KeyError: 'as far as here'" in output("check.py", folder=tmp_path, code=1, TMPDIR=str(long))


def of(folder: str) -> dict[int, str]:
    """Processes that have the folder in their environment, as pidfd and what they are."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"XDG_STATE_HOME={folder}\0".encode() in (process / "environ").read_bytes():
                found[os.pidfd_open(int(process.name))] = (process / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_nothing_is_left_of_one_that_was_ended(by: signal.Signals, tmp_path: Path) -> None:
    """Not the daemon, its keeper, the launcher, the process that trains; not the folder."""
    waits = "import os, threading\nif __name__ != '__main__':\n    open('folder', 'w').write(os.environ['XDG_STATE_HOME'])\n    threading.Event().wait()\n"
    (tmp_path / "check.py").write_text(STEPLESS + waits + CALL)
    os.mkfifo(tmp_path / "folder")
    with open(os.open(tmp_path / "folder", os.O_RDONLY | os.O_NONBLOCK)) as told:
        program = started("check.py", folder=tmp_path)
        assert select.select([told], [], [], cluster.PATIENCE)[0]
        folder = told.read()
    running = of(folder)
    assert any("\0keeper\0" in what for what in running.values()) and any("\0daemon\0" in what for what in running.values()) and len(running) >= 5, running
    program.send_signal(by)
    for process, what in running.items():
        assert select.select([process], [], [], cluster.PATIENCE)[0], f"still there: {what}"
        os.close(process)
    said, _ = program.communicate(timeout=cluster.PATIENCE)
    assert program.returncode in (-by, 1), said
    assert not Path(folder).exists()


def test_seeded_plans_depend_on_the_seed_alone(tmp_path: Any) -> None:
    plans = [testing.Faults.seeded(s, world=3, steps=100, count=9, rank=0, folder=tmp_path).plan for s in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert {f.where for f in plans[0]} == set(testing.PLACES)
    assert [f.step for f in plans[0] if f.where != "resume"] == sorted(f.step for f in plans[0] if f.where != "resume")


def test_a_fault_happens_once_in_the_life_of_a_job(tmp_path: Any) -> None:
    for life in range(2):
        faults = testing.Faults([testing.Fault(3, 0, "window", "raise")], rank=0, folder=tmp_path)
        faults.at("window", 2)
        if life == 0:
            with pytest.raises(testing.Injected):
                faults.at("window", 4)
        faults.at("window", 5)
    (found,) = faults.happened()
    assert (found["step"], found["where"], found["rank"]) == (4, "window", 0)
