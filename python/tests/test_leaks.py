"""A process that opens, attaches and closes ranks again and again keeps nothing of them."""

from __future__ import annotations

from conftest import Daemon


def test_open_attach_close(daemon: Daemon) -> None:
    """A process may hold several ranks of a job but none twice, so each turn is another rank."""
    job = daemon.run(
        """
        import ctypes, os, signal, threading, time
        from replicad import Rank, Region

        def open_files():
            return len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir("/proc/self/task"))

        def resident():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def maps():
            with open("/proc/self/maps") as f:
                return sum(1 for _ in f)

        size = 256 << 10
        memory = (ctypes.c_uint8 * size)()

        def once(i):
            with Rank.open(rank=i) as rank:
                rank.register([Region("m", ctypes.addressof(memory), size, shape=(size,))])
                rank.attach()

        looks = []
        for i in range(1, 11):
            once(i)
            looks.append(open_files())
        # The kernel has a thread for a moment after it was joined: the least of some looks has none of these, and the last look waits for them.
        before, mapped, held = tuple(map(min, zip(*looks[5:]))), maps(), resident()
        for i in range(11, 111):
            once(i)
        end = time.monotonic() + 60
        while (after := open_files()) != before and time.monotonic() < end:
            time.sleep(0.005)
        assert after == before, (before, after)
        assert maps() <= mapped + 4, (mapped, maps())
        grown = resident() - held
        assert grown < 2 << 20, grown  # less than three arenas
        print("FLAT", grown, flush=True)
        kept = Rank.open(rank=111)  # the comparison can fail
        kept.register([Region("m", ctypes.addressof(memory), size, shape=(size,))])
        kept.attach()
        assert open_files() > after and open_files()[1] == after[1] + 2, (after, open_files())
        print("SEEN", flush=True)
        signal.pause()
        """,
        world=112,
        flags=("--capacity", "1", "--ranks", "0"),
    )
    job.until("FLAT")
    job.until("SEEN")
    daemon.verb("job", "end", job.name, "--dev")
    assert job.wait() == 1
