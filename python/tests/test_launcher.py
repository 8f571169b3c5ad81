"""What the launcher does with programs that don't get as far as a rank."""

from __future__ import annotations

from conftest import Daemon


def test_import_error_ends_the_job(daemon: Daemon) -> None:
    job = daemon.run("import sys; print('STARTED', flush=True)\nraise ImportError('no such module')")
    assert job.wait() == 5, "do not requeue"
    out = str(job.out)
    assert out.count("STARTED") == 5
    assert out.count("ImportError: no such module") == 5
    assert "do not requeue: rank 0 ended 5 times in a row on node dev before it attached, the last time with status 1" in out


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
