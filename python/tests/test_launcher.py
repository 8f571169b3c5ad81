"""What the launcher does with programs that don't get as far as a rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import Daemon


def test_import_error_ends_the_job(daemon: Daemon) -> None:
    job = daemon.run("import sys; print('STARTED', flush=True)\nraise ImportError('no such module')")
    assert job.wait() == 5, "do not requeue"
    out = str(job.out)
    assert out.count("STARTED") == 5
    assert out.count("ImportError: no such module") == 5
    assert "do not requeue: rank 0 ended 5 times in a row on node dev before it attached, the last time with status 1" in out
    assert [n for n in range(6) if f"rank 0 ended {n} times in a row before it had a session, the last time with status 1 after" in out] == [2, 3, 4]


def test_replacement_that_never_attaches_ends_the_job(daemon: Daemon) -> None:
    """The first process trains; what is started in its place fails at once."""
    job = daemon.run(
        """
        import ctypes, os, sys
        if os.path.exists(sys.argv[0] + ".second"):
            sys.exit(9)
        open(sys.argv[0] + ".second", "w").close()
        from replicad import Rank, Region
        memory = (ctypes.c_uint8 * 64)()
        rank = Rank.open()
        rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
        rank.attach()
        while rank.join().initialise:
            rank.seal_initial()
        rank.load(); rank.ready()
        os._exit(1)
        """
    )
    assert job.wait() == 5, "do not requeue"
    assert "rank 0 ended 5 times in a row on node dev before it attached, the last time with status 9" in str(job.out)


def test_a_second_launcher_says_what_it_waits_for(daemon: Daemon) -> None:
    program = """
        import ctypes, os, signal, sys
        from replicad import Rank, Region
        memory = (ctypes.c_uint8 * 64)()
        rank = Rank.open()
        rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
        rank.attach()
        while rank.join().initialise:
            rank.seal_initial()
        rank.load(); rank.ready()
        print("TRAINS", flush=True)
        while not os.path.exists(sys.argv[0] + ".go"):
            signal.sigtimedwait([], 0.01)
        rank.leave()
        """
    first = daemon.run(program)
    first.until("TRAINS")
    second = daemon.run(program, name=first.name)
    second.until(f'job "{first.name}" runs already with all its ranks, on dev (1). This launcher\'s process is spare and starts when a rank is lost')
    (daemon.dir / f"{first.name}.py.go").touch()
    assert "TRAINS" not in second.done()
    first.done()


@pytest.mark.parametrize("between", ["", "exec 3<&-"], ids=["lets it wait", "closes its descriptor"])
def test_a_script_between_warm_processes_and_python(daemon: Daemon, tmp_path: Path, between: str) -> None:
    """A script that does not `exec` Python keeps nobody from being a lost rank; what closes descriptors (`conda run`) costs only that nobody waits."""
    script = tmp_path / "run.sh"
    script.write_text(f'#!/bin/sh\n{between}\n{sys.executable} "$@"\nexit $?\n')
    script.chmod(0o755)
    job = daemon.run(
        """
        import ctypes, os, signal, sys
        import replicad
        from replicad import Rank, Region
        waits = "REPLICAD_WAIT_FD" in os.environ
        if waits:
            print("WAITING", flush=True)
        memory = (ctypes.c_uint8 * 64)()
        rank = Rank.open()
        rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
        rank.attach()
        while rank.join().initialise:
            rank.seal_initial()
        rank.load(); rank.ready()
        print("TRAINS", "from waiting" if waits else "as started", flush=True)
        if not os.path.exists(sys.argv[0] + ".second"):
            input_from = sys.argv[0] + ".go"
            while not os.path.exists(input_from):
                signal.sigtimedwait([], 0.01)
            open(sys.argv[0] + ".second", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        rank.leave()
        """,
        flags=("--warm", "1"),
        python=str(script),
    )
    job.until("WAITING")
    if between:
        job.until("stands between")
    (daemon.dir / f"{job.name}.py.go").touch()
    out = job.done()
    assert out.count("TRAINS") == 2
    assert ("TRAINS from waiting" in out) == (not between)
