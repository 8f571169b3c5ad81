"""Ranks that fork from the tests' own process are what their tests take them for: fresh processes that run a program."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from conftest import Daemon
from test_preload import DESCRIBED, DRAWN, RANK, Lives, compared

#: What differs: the command line in /proc is that of the process that has imported torch, which needs replicad._preload for its work; standin.py has a
#: finder of its own, and spares a program torch's compiler, with which sympy comes and what it wants to be warned of.
OTHERS = ("cmdline", "ours", "importers", "meta_path", "warnings")


@pytest.fixture
def described(daemon: Daemon) -> Path:
    (daemon.dir / "described.py").write_text(DESCRIBED)
    return daemon.dir


def test_a_rank_is_as_a_fresh_process(daemon: Daemon, described: Path) -> None:
    found: dict[bool, list[dict[str, Any]]] = {}
    name = f"t-warm-{os.getpid()}"
    for fresh in (True, False):
        lives = Lives(daemon.run(RANK.replace("IMPORTS", "import torch\nfrom numpy import random"), "argument", name=name, fresh=fresh), described)
        found[fresh] = [lives.next(), lives.again()]
        out = lives.end(daemon)
        assert out.count("forked from process") == (0 if fresh else 2), out
        (described / f"{name}.py.go").unlink()
        assert all(life["ppid"] == lives.job.process.pid for life in found[fresh])
        for drawn in {*DRAWN} & found[fresh][0].keys():
            assert len({life[drawn] for life in found[fresh]}) == 2, drawn
    for one, other in zip(*found.values(), strict=True):
        assert {k: v for k, v in compared(one).items() if k not in OTHERS} == {k: v for k, v in compared(other).items() if k not in OTHERS}


#: How a program ends, after it has left the job.
ENDS = """
import atexit, os, signal, sys, threading
import torch
import replicad

session = replicad.Session(model=torch.nn.Linear(1, 1))
session.resume()
with session.step():
    pass
session.leave()
session.close()
atexit.register(print, "ATEXIT")
print("PYTEST", [n for n in sys.modules if n in ("pytest", "_pytest", "xdist", "warm", "warmed", "conftest", "quick")])
print("buffered", end="")
sys.stderr.write("not buffered\\n")
threading.Thread(target=lambda: print("THREAD")).start()

class Local:
    def ends(self):
        exec(sys.argv[1])

Local().ends()
"""


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("raise KeyError('x')", 1, "KeyError: 'x'\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "KeyboardInterrupt\n"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, ""),
        ("os._exit(4)", 4, ""),
    ],
)
def test_a_program_ends_as_python_ends_it(how: str, code: int, said: str, daemon: Daemon) -> None:
    printed = {}
    for fresh in (True, False) if how.startswith("raise") else (False,):
        job = daemon.run(ENDS, how, name=f"t-ends-{os.getpid()}-{code}", fresh=fresh)
        job.wait()
        assert f"ended with status {code}" in job.printed(), job.printed()
        printed[fresh] = re.sub(r"^replicad run: .*$", "", job.printed(), flags=re.M).split()
    out = job.printed()
    assert said in out + "\n" and "forked from process" in out, out
    if "_exit" not in how and "SIGTERM" not in how:
        assert "ATEXIT" in out and "buffered" in out and "THREAD" in out and "PYTEST []" in out, out
    if len(printed) == 2:
        assert sorted(w for w in printed[True] if w != "['quick']") == sorted(w for w in printed[False] if w != "[]")
