"""Locks that killed builds of torch's extensions leave: those that nobody holds are removed, by the process that is about to build."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Lines, environment, stream
from replicad.adapters import _builds

#: Holds a file as torch's FileBaton does, until it is killed.
HOLDER = "import os, signal, sys\nos.open(sys.argv[1], os.O_CREAT | os.O_EXCL)\nprint('holds', flush=True)\nsignal.pause()"


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_builds, "REMOVES", 0.0)
    folder = tmp_path / "py311_cpu" / "some_op"
    folder.mkdir(parents=True)
    return folder / "lock"


@pytest.fixture
def builder(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that builds."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True) as process:
        assert stream(process.stdout).readline() == "holds\n"
        yield process
        process.kill()


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_lock_that_is_held_stays(lock: Path, builder: subprocess.Popen[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _builds.clear(tmp_path)
    assert lock.exists()
    assert not warned(caplog)


def test_a_lock_whose_holder_was_killed_is_removed_and_said(lock: Path, builder: subprocess.Popen[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    builder.kill()
    builder.wait()
    _builds.clear(tmp_path)
    assert not lock.exists()
    assert warned(caplog) == [f"replicad: removed {lock}: the process that built there was killed, and programs would wait for it without an end"]


def test_a_lock_that_another_process_has_taken_meanwhile_stays(lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.touch()

    def others(_: float) -> None:
        lock.unlink()
        lock.touch()

    monkeypatch.setattr("time.sleep", others)
    _builds.clear(tmp_path)
    assert lock.exists()


def test_who_only_stands_in_the_folder_is_not_waited_for(lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, or a shell that a user has there."""
    lock.touch()
    monkeypatch.chdir(lock.parent)
    with subprocess.Popen(["cat"], cwd=lock.parent, stdin=subprocess.PIPE) as shell:
        _builds.clear(tmp_path)
        assert shell.poll() is None
        shell.communicate()
    assert not lock.exists()


def test_a_compiler_is_not_waited_for_without_an_end(lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_builds, "WAITS", 0.0)
    lock.touch()
    (tmp_path / "cc1plus").symlink_to("/bin/cat")
    with subprocess.Popen([tmp_path / "cc1plus"], cwd=lock.parent, stdin=subprocess.PIPE) as compiler:
        _builds.clear(tmp_path)
        assert compiler.poll() is None
        compiler.communicate()
    assert lock.exists()
    waits, ends = warned(caplog)
    assert waits == f"replicad: {lock.parent}: waits for {compiler.pid}, which a killed build has left to compile there"
    assert f"(a killed build has left {compiler.pid} to compile there, which has not ended in 0 s)" in ends


def test_where_nobody_can_tell_the_lock_stays_and_is_said(lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    lock.touch()
    monkeypatch.setattr(_builds, "LOCAL", frozenset())
    _builds.clear(tmp_path)
    assert lock.exists()
    (text,) = warned(caplog)
    assert text.startswith(f"replicad: {lock}: it can't be seen whether a process that builds holds it (it lies on a file system of kind ")
    assert text.endswith("if none does, remove it: programs wait for it without an end")


def test_kinds_of_file_systems(tmp_path: Path) -> None:
    assert _builds._kind(Path("/proc/self/status")) == "proc"
    assert _builds._kind(tmp_path / "not there yet") == _builds._kind(tmp_path) != ""


BUILDS = """
import logging, sys
logging.basicConfig(format="%(message)s")
from replicad.adapters import _builds
_builds.clear()
from torch.utils import cpp_extension
print("builds", flush=True)
cpp_extension.load("some_op", [sys.argv[1]], is_python_module=False)
print("has built", flush=True)
"""
#: A compiler that waits to be let go on.
COMPILER = """#!/bin/sh
case "$*" in *-c*) echo $$ >>"$COMPILERS"; read line <"$GO";; esac
exec g++ "$@"
"""


def test_a_real_build_that_was_killed_is_done_anew(tmp_path: Path) -> None:
    """The process that builds is killed; its compiler is not, and is waited for. The next process would wait for the lock for ever."""
    pytest.importorskip("torch")
    pytest.importorskip("ninja", reason="ninja is missing: `make frameworks-test` has it")
    source, compiler, go, compilers = tmp_path / "op.cpp", tmp_path / "c++", tmp_path / "go", tmp_path / "compilers"
    source.write_text('extern "C" int op() { return 1; }\n')
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    os.mkfifo(go)
    compilers.touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = environment(PATH=path, CXX=str(compiler), GO=str(go), COMPILERS=str(compilers), TORCH_EXTENSIONS_DIR=str(tmp_path / "ext"), MAX_JOBS="1")

    def build() -> tuple[subprocess.Popen[str], Lines]:
        process = subprocess.Popen([sys.executable, "-c", BUILDS, str(source)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return process, Lines(stream(process.stdout))

    first, lines = build()
    lines.until("builds")
    with open(go, "w"):  # opens once a compiler reads
        first.send_signal(signal.SIGKILL)
        first.wait()
        second, lines = build()
        said = lines.until("which a killed build has left to compile there")
        assert compilers.read_text().split()[0] in said
    lines.until(f"removed {tmp_path / 'ext' / 'some_op' / 'lock'}")
    with open(go, "w"):
        pass
    lines.until("has built")
    assert second.wait() == 0
