"""The programs of examples/loops come to the same whether nobody disturbs them, or they are killed twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import PATIENCE, ROOT, Daemon, Job, environment, launched

LOOPS = ROOT / "examples" / "loops"
PAGES = ROOT / "docs"
#: Where each is killed: in a forward, in the block, or when the loop asks for the step after the named one, with all done that follows it.
KILLS = {
    "gan": "window:8 iteration:17",
    "sam": "window:8 iteration:17",
    "momentum": "forward:8 updated:17",
    "replay": "forward:14 iteration:27",
    "log": "iteration:9 forward:21",
    "curriculum": "forward:11 iteration:20",
    "skip": "iteration:12 window:29",
    "evaluate": "forward:11 iteration:20",
    "average": "forward:11 iteration:20",  # the first forward after step 10 is its evaluation's, with the average in
    "trainer": "forward:11 window:20",  # the first forward after step 10 is its evaluation's
    "loop": "forward:71 batch:112",  # of docs/loops.md; step 70 is followed by an evaluation, 112 by that of an epoch
}
WRAPPER = str(Path(__file__).with_name("looped.py"))


def plain(folder: Path) -> dict[str, str]:
    return environment(OMP_NUM_THREADS="1", ALONE=str(folder))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each program's file, by its name."""
    page = tmp_path_factory.mktemp("page") / "loop.py"
    page.write_text(next(b for b in blocks("loops.md") if b.startswith("# loop.py\n")))
    return {p.stem: p for p in LOOPS.glob("*.py")} | {"loop": page}


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.M | re.S)


@pytest.fixture(scope="module")
def alone(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each program prints that no launcher started: nothing of replicad has a part in that."""
    folder = tmp_path_factory.mktemp("alone")
    done = subprocess.run([sys.executable, WRAPPER, *map(str, programs.values())], env=plain(folder), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(part.split(".py\n", 1) for part in done.stdout.split("PROGRAM ")[1:])


def test_every_program_is_here(programs: dict[str, Path]) -> None:
    assert set(programs) == set(KILLS)


@pytest.mark.parametrize("page", ["loops.md", "loops-people-write.md", "frameworks.md"])
def test_pages_quote_the_programs(page: str) -> None:
    """A piece of a program on a page is that program's: the page would go stale."""
    text = (PAGES / page).read_text()
    for section in re.split("^## ", text, flags=re.M):
        for name in re.findall(r"examples/loops/(\w+)\.py", section)[:1]:
            program = {line.strip() for line in (LOOPS / f"{name}.py").read_text().splitlines()}
            for block in re.findall(r"^```python\n(.*?)^```", section, re.M | re.S):
                assert {line.strip() for line in block.splitlines()} - {"..."} <= program, block


@pytest.mark.parametrize("name", KILLS)
def test_a_killed_run_is_the_same_run(name: str, daemon: Daemon, programs: dict[str, Path], alone: dict[str, str], tmp_path: Path) -> None:
    run = [str(daemon.program), "run", "--dev", "--job", f"loop-{name}-{os.getpid()}", "--world", "1", "--min-copies", "1", "--ranks", "0"]
    env = daemon.env | {"OMP_NUM_THREADS": "1", "KILLS": KILLS[name]}
    job = Job.of(launched(run, [sys.executable, WRAPPER, str(programs[name])], env, tmp_path), name)
    job.done()
    out = job.printed()
    assert {p.name for p in tmp_path.glob("killed-*")} == {f"killed-{k.replace(':', '-')}" for k in KILLS[name].split()}, out
    assert len(re.findall("recovered: step [1-9]", out)) == 2, out
    assert re.findall("DIGEST .*", out) == re.findall("DIGEST .*", alone[name]) != [], out
    if name != "skip":  # which counts for its process alone
        assert last(out) == last(alone[name]), out
    if name not in ("skip", "curriculum"):  # the latter's first loader rests, which the session names
        assert "noticed {}" in out, out


def last(output: str) -> str:
    """A program's line at its end, up to what was noticed."""
    (line,) = re.findall("^(?:rank 0 at )?step (.*), noticed", output, re.M)
    return str(line)
