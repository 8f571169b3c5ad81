"""Random generators: what is drawn after a restore is what was drawn after the capture, bit for bit."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import struct
import subprocess
import sys
import types
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import rng_golden
from replicad import Opaque, rng
from replicad._core import capsule, twister
from replicad._core import rngcodec as codec
from replicad.errors import Corrupt, Invalid, Mismatch, Unsupported


@pytest.fixture(autouse=True)
def _nothing_left():
    """Each test finds and leaves the global generators seeded, and none added."""
    rng_golden.seeded()
    yield
    for name in list(rng._named):
        rng.remove(name)


def generators():
    """Name and generator of all kinds, and how a mixed bag of numbers is drawn from each."""

    def of_random(g):
        return lambda: [g.getrandbits(32), g.random(), g.gauss(0, 1), g.randrange(7), g.gauss(0, 1), g.gauss(0, 1)]

    def of_legacy(g):
        return lambda: [g.standard_normal(3).tobytes(), g.randint(0, 9, 5).tobytes(), g.bytes(3)]

    def of_bits(g):
        return lambda: [g.integers(0, 2**32, 3, np.uint32).tobytes(), g.standard_normal(3).tobytes(), g.random(1, np.float32).tobytes(), g.permutation(9).tobytes()]

    def of_torch(g):
        return lambda: [torch.randn(3, generator=g).tolist(), torch.randn(64, generator=g).tolist(), torch.rand(1, generator=g).item(), torch.randperm(9, generator=g).tolist()]

    yield "python", None, of_random(random)
    yield "numpy", None, of_legacy(np.random)
    yield "torch", None, of_torch(None)
    named = rng_golden.named()
    yield "named python", named["python"], of_random(named["python"])
    yield "named legacy", named["legacy"], of_legacy(named["legacy"])
    yield "named torch", named["torch"], of_torch(named["torch"])
    for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"):
        yield name, named[name], of_bits(named[name])


KINDS = [name for name, _, _ in generators()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [0, 1, 5, 700])
def test_what_is_drawn_after_a_restore(kind, before):
    _, g, draw = next(x for x in generators() if x[0] == kind)
    if g is not None:
        rng.add(kind, g)
    for _ in range(before):
        draw()
    state = rng.get()
    first = [draw() for _ in range(40)]
    assert [draw() for _ in range(40)] != first
    rng.set(state)
    assert rng.get() == state
    assert [draw() for _ in range(40)] == first


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_numpys_own_view_of_a_state_is_equal(name):
    g = rng_golden.named()[name]
    rng.add("g", g)
    for draws in range(9):  # halves waiting and used, every place in Philox's buffer
        g.integers(0, 2**32, draws, np.uint32)
        state, seen = rng.get(), g.bit_generator.state
        g.bit_generator.state = type(g.bit_generator)(99).state
        rng.set(state)
        assert repr(g.bit_generator.state) == repr(seen)


def test_twisters_read_where_they_lie_are_what_they_answer():
    assert twister.pythons(rng._asked_python)
    assert twister.numpys(rng._asked_random_state)
    own = random.Random(5)
    for seed in range(40):
        for g in (random, own):
            g.seed(seed)
            for _ in range(17 * seed):
                g.getrandbits(32)
            for _ in range(seed % 4):
                assert rng._read_python(g) == rng._asked_python(g)
                g.gauss(0, 1)
            assert rng._read_python(g) == rng._asked_python(g)
        np.random.seed(seed)
        np.random.bytes(68 * seed)
        for _ in range(seed % 4):
            assert rng._read_random_state(np.random) == rng._asked_random_state(np.random)
            np.random.standard_normal()
        assert rng._read_random_state(np.random) == rng._asked_random_state(np.random)


def test_numpys_global_generator_on_another_twister():
    was = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.MT19937(77))
    try:
        assert rng._read_random_state(np.random) == rng._asked_random_state(np.random)
    finally:
        np.random.set_bit_generator(was)
    assert rng._read_random_state(np.random) == rng._asked_random_state(np.random)


def test_a_sample_left_over_is_seen_where_no_word_was_drawn():
    """numpy's second normal sample draws no word: words and position are what they were."""
    np.random.standard_normal()
    left, before = np.random.get_state(), rng.get()
    np.random.standard_normal()
    after = rng.get()
    assert after != before
    np.random.set_state(left)
    assert rng.get() == before


@pytest.mark.parametrize("bent", [0, 1200, 2496, 2500, 2504])
def test_a_layout_that_is_not_the_one_known_is_asked(bent):
    def bend(asked):
        def other(g):
            b = bytearray(asked(g))
            b[bent] ^= 1
            return bytes(b)

        return other

    assert twister.pythons.__wrapped__(bend(rng._asked_python)) is None
    assert twister.numpys.__wrapped__(bend(rng._asked_random_state)) is None


def test_without_a_reader_generators_are_asked(monkeypatch):
    read = rng.get()
    monkeypatch.setattr(twister, "pythons", lambda asked: None)
    monkeypatch.setattr(twister, "numpys", lambda asked: None)
    monkeypatch.setattr(rng, "_last", ([], Opaque()))
    assert rng.get() == read


def test_a_bit_generator_and_its_generator_are_one():
    bits = np.random.PCG64(1)
    rng.add("g", bits)
    rng.add("g", np.random.Generator(bits))
    with pytest.raises(Invalid, match="'g' belongs to another generator already"):
        rng.add("g", np.random.PCG64(1))
    rng.remove("g")
    with pytest.raises(Invalid, match="no generator 'g'"):
        rng.remove("g")


def test_it_fits_a_capsule():
    state = rng.get()
    assert type(state) is Opaque
    kept = capsule.unpack(capsule.pack({"rng": state}))["rng"]
    assert kept == state
    first = (random.random(), np.random.random(), torch.rand(1).item())
    rng.set(kept)
    assert (random.random(), np.random.random(), torch.rand(1).item()) == first


def test_it_takes_bytes_of_any_kind_and_nothing_else():
    state = rng.get()
    for kind in (bytes, bytearray, memoryview):
        rng.set(kind(state))
    with pytest.raises(Invalid, match="not a dict"):
        rng.set({"python": 1})


def test_preserved():
    first = rng.get()
    with rng.preserved():
        random.random(), np.random.random(), torch.rand(1)
        rng.add("added inside", np.random.PCG64(1))
        assert rng.get() != first
    rng.remove("added inside")
    assert rng.get() == first
    with contextlib.suppress(ZeroDivisionError), rng.preserved():
        random.seed(99)
        raise ZeroDivisionError
    assert rng.get() == first


# -- what generators spawn --------------------------------------------------------------------------------------------------


def spawned(g, n=2):
    """What children of a generator draw."""
    return [child.integers(0, 2**32, 4).tolist() for child in g.spawn(n)]


BITS = ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("seed", [5, 0, 2**200 + 1, [], [1, 2**70, 0], "array", "child", "wide"])
def test_children_after_a_restore_are_those_of_the_undisturbed_run(bits, seed):
    def make():
        given = {
            "array": np.array([1, 2], np.uint32),
            "child": np.random.SeedSequence(3, spawn_key=(2**40, 0)).spawn(1)[0],
            "wide": np.random.SeedSequence(3, pool_size=8),
        }.get(seed if isinstance(seed, str) else "", seed)
        return np.random.Generator(getattr(np.random, bits)(given))

    g = make()
    rng.add("g", g)
    g.spawn(3)
    state = rng.get()
    first = spawned(g), spawned(g), g.random()
    rng.set(state)  # in the same process: more were spawned here
    assert rng.get() == state
    assert (spawned(g), spawned(g), g.random()) == first
    rng.remove("g")
    again = make()  # a process that begins anew has spawned fewer
    rng.add("g", again)
    rng.set(state)
    assert rng.get() == state
    assert (spawned(again), spawned(again), again.random()) == first


def test_a_seed_sequence_of_another_seed_is_replaced():
    g, other = np.random.default_rng(5), np.random.default_rng()
    rng.add("g", g)
    state, first = rng.get(), spawned(g)
    rng.remove("g")
    rng.add("g", other)
    rng.set(state)
    assert spawned(other) == first


def test_a_sequence_that_the_program_holds_counts_on():
    """A process that resumes made its seed sequence anew: it is the same object after the restore, and further on."""
    sequence = np.random.SeedSequence(5)
    rng.add("a", np.random.default_rng(sequence))
    rng.add("b", np.random.default_rng(sequence))  # two may share one
    sequence.spawn(3)
    state = rng.get()
    first = sequence.spawn(1)[0].generate_state(4).tolist()
    again = np.random.SeedSequence(5)
    for name in "ab":
        rng.remove(name)
        rng.add(name, np.random.default_rng(again))
    rng.set(state)
    assert again.spawn(1)[0].generate_state(4).tolist() == first


def test_two_that_share_a_sequence_share_it_after_a_restore():
    sequence = np.random.SeedSequence(5)
    a, b = np.random.default_rng(sequence), np.random.default_rng(sequence)
    rng.add("a", a)
    rng.add("b", b)
    state, first = rng.get(), (spawned(a), spawned(b))
    rng.set(state)
    assert (spawned(a), spawned(b)) == first


def test_a_capture_without_seed_sequences_loads():
    """Those of before they were kept: what is spawned goes on from where it is."""
    g = np.random.default_rng(5)
    rng.add("g", g)
    old = codec.pack(r for r in codec.parse(rng.get()) if r.place != codec.SEEDS)
    first = g.random()
    g.spawn(2)
    rng.set(old)
    assert g.random() == first
    assert g.bit_generator.seed_seq.n_children_spawned == 2


def test_spawning_inside_preserved_leaves_no_trace():
    g = np.random.default_rng(5)
    rng.add("g", g)
    with rng.preserved():
        first = spawned(g)
    assert spawned(g) == first


def test_a_seed_sequence_that_cannot_be_kept_is_named(caplog):
    class Own(np.random.SeedSequence):
        pass

    for name, seed in {"own": Own(5), "text": ["0x12"], "huge": np.random.SeedSequence(5, pool_size=2048), "long": 2**20000}.items():
        g = np.random.default_rng(seed)
        rng.add(name, g)
        assert f"{name!r}: its seed sequence" in caplog.records[-1].getMessage()
        state, first = rng.get(), g.random()
        rng.set(state)
        assert g.random() == first
    before = len(caplog.records)
    rng.add("plain", np.random.default_rng(5))
    rng.add("jumped", np.random.Generator(np.random.PCG64(5).jumped()))
    assert len(caplog.records) == before


def test_malformed_seed_sequences_change_nothing():
    g = np.random.default_rng(5)
    rng.add("g", g)
    *others, seeds = codec.parse(rng.get())
    g.spawn(4)
    before = rng.get()
    for payload, reason in rng_golden.SEEDS_REFUSED:
        with pytest.raises(Corrupt) as info:
            rng.set(codec.pack([*others, seeds._replace(payload=payload)]))
        assert reason in str(info.value)
    for records, why in (
        ([*others, seeds._replace(name="other")], "the seed sequence of the generator 'other': no generator"),
        ([*others, seeds._replace(layout=codec.L_SFC64, payload=bytes(40))], "a state of SFC64, want seed sequence"),
        ([*others, codec.Record(codec.NAMED, codec.L_SEEDS, "z", seeds.payload)], "a state of seed sequence"),
        ([*others, seeds, seeds], "twice"),
        ([*others[:-1], seeds, others[-1]], "no generator"),
        ([*others[:-1], others[-1]._replace(layout=codec.L_TORCH_CUDA, payload=bytes(16)), seeds], "no generator"),
    ):
        with pytest.raises(Corrupt, match=why):
            rng.set(codec.pack(records))
    assert rng.get() == before


# -- another process --------------------------------------------------------------------------------------------------------


def _draws():
    return [random.random(), random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.randn(3).tolist()]


def _child(state, answers):
    rng.set(state)
    answers.put((_draws(), bytes(rng.get())))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_across_processes(method):
    ctx = multiprocessing.get_context(method)
    answers = ctx.Queue()
    state = rng.get()
    child = ctx.Process(target=_child, args=(bytes(state), answers))
    first, after = _draws(), rng.get()
    child.start()
    assert answers.get(timeout=120) == (first, bytes(after))
    child.join(60)
    assert child.exitcode == 0


def _python(code, **kw):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(rng.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False, timeout=120, **kw)


def test_it_imports_no_library():
    code = """
import sys, random
from replicad import rng
state = rng.get()
first = random.random()
rng.set(state)
assert random.random() == first
assert not {"numpy", "torch"} & sys.modules.keys()
sys.stdout.buffer.write(state)
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr.decode()
    assert [r.place for r in codec.parse(done.stdout)] == [codec.PYTHON]


def test_a_library_that_is_missing_is_named():
    code = """
import sys, random
from replicad import rng
from replicad.errors import Mismatch
before = random.getstate()
try:
    rng.set(sys.stdin.buffer.read())
except Mismatch as err:
    assert random.getstate() == before
    print(err)
"""
    done = _python(code, input=bytes(rng.get()))
    assert done.stdout.decode().strip() == "numpy's global generator: the state has it, but numpy is not loaded here: import numpy before", done.stderr.decode()


# -- refusals ---------------------------------------------------------------------------------------------------------------


def refused():
    lines = (rng_golden.DIR / "refused.txt").read_text().splitlines()
    assert len(lines) > 50
    for line in lines:
        at, patch, reason = line.split(" ", 2)
        body, _, zeros = patch.partition("+")
        yield int(at), bytes.fromhex(body) + bytes(int(zeros or 0)), reason


@contextlib.contextmanager
def all_of_full(monkeypatch):
    """A process that full.bin fits."""
    for name, g in rng_golden.named().items():
        rng.add(name, g)
    fakes = fake_cuda(monkeypatch, 11)
    tracker = fake_megatron(monkeypatch, ["expert-parallel-rng", "model-parallel-rng"])
    yield fakes, tracker


def test_malformed_states_change_nothing(monkeypatch):
    full = (rng_golden.DIR / "full.bin").read_bytes()
    with all_of_full(monkeypatch):
        before = rng.get()
        for at, patch, reason in refused():
            b = bytearray(full)
            b[at : at + len(patch)] = patch
            with pytest.raises(Corrupt) as info:
                rng.set(b)
            assert reason in str(info.value)
        for n in [*range(0, 3000, 7), *range(3000, len(full), 501), len(full) - 1]:
            with pytest.raises(Corrupt):
                rng.set(full[:n])
        with pytest.raises(Corrupt, match="1 bytes after the last"):
            rng.set(full + b"\0")
        assert rng.get() == before
        rng.set(full)
        now = rng.get()
        assert now != before
        assert [r for r in codec.parse(now) if r.place != codec.SEEDS] == codec.parse(full)  # a file of before seed sequences were kept


def test_order_of_records():
    python = codec.parse(rng.get())[0]
    cuda = [codec.Record(codec.CUDA, codec.L_TORCH_CUDA, str(i), bytes(16)) for i in range(3)]
    late = codec.Record(codec.MEGATRON, codec.L_TORCH_CUDA, "m", bytes(16))
    assert len(codec.parse(codec.pack([python, *cuda, late]))) == 5
    for wrong, why in (
        ([*cuda], "alone, is the first"),
        ([python, python], "alone, is the first"),
        ([python, cuda[1]], "want device 0"),
        ([python, cuda[0], cuda[2]], "want device 1"),
        ([python, late, *cuda], "want device 0"),
        ([python, late, late], "twice"),
        ([python, late._replace(name="")], "a name of 0"),
        ([python, late._replace(name="x" * 256)], "a name of 256"),
        ([python, late._replace(payload=bytes(15))], "15 bytes of a state of torch CUDA, want 16"),
        ([], "0 records"),
        ([python, *cuda[:1] * 1024], "1025 records"),
    ):
        with pytest.raises(Corrupt, match=why):
            codec.parse(codec.pack(wrong))


def test_other_generators_here_than_in_the_state():
    state = rng.get()
    rng.add("a", np.random.PCG64(1))
    before = rng.get()
    with pytest.raises(Mismatch, match=r"nothing of the generators \['a'\]"):
        rng.set(state)
    random.random()
    rng.remove("a")
    with pytest.raises(Mismatch, match="the generator 'a': the state has it, but it is not here"):
        rng.set(before)
    rng.add("a", np.random.Philox(1))
    now = rng.get()
    with pytest.raises(Mismatch, match="the generator 'a': the state is of PCG64, the generator here is Philox"):
        rng.set(before)
    assert rng.get() == now


def test_generators_that_cannot_be_kept():
    class Own(random.Random):
        def getstate(self):
            return None

    class OwnBits(np.random.PCG64):
        pass

    for g in (random.SystemRandom(), Own(), OwnBits(), object(), np.random.RandomState):
        with pytest.raises(Unsupported, match="the generator 'x' is a"):
            rng.add("x", g)
    with pytest.raises(Unsupported, match="runs on PCG64"):
        rng.add("x", np.random.RandomState(np.random.PCG64(1)))
    for name in ("", "x" * 256, 3, "\ud800"):
        with pytest.raises(Invalid, match="want a name of 1 to 255"):
            rng.add(name, np.random.PCG64(1))


def test_a_state_that_set_would_refuse_is_not_handed_out():
    bits = np.random.PCG64(1)
    rng.add("even", bits)
    bits.state = bits.state | {"state": {"state": 1, "inc": 2}}
    for _ in range(2):
        with pytest.raises(Unsupported, match="the generator 'even' is in a state that can't be kept: an even increment: seed it anew"):
            rng.get()


def test_numpys_global_generator_on_another_one():
    state, was = rng.get(), np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(Unsupported, match="runs on PCG64"):
            rng.get()
        before = random.getstate()
        random.random()
        moved = random.getstate()
        with pytest.raises(Unsupported, match="numpy's global generator runs on PCG64"):
            rng.set(state)
        assert random.getstate() == moved != before
    finally:
        np.random.set_bit_generator(was)


# -- CUDA and Megatron, without either --------------------------------------------------------------------------------------


class FakeCUDA:
    """What torch's generators of CUDA devices look like from outside."""

    def __init__(self, seed):
        self.state = torch.frombuffer(bytearray(struct.pack("<QQ", seed, 8)), dtype=torch.uint8)

    def get_state(self):
        return self.state.clone()

    def set_state(self, state):
        assert state.device.type == "cpu"
        assert state.numel() == 16
        self.state = state.clone()


def fake_cuda(monkeypatch, n):
    fakes = tuple(FakeCUDA(i) for i in range(n))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n)
    monkeypatch.setattr(torch.cuda, "default_generators", fakes)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda s, i: fakes[i].set_state(s))
    return fakes


class FakeTracker:
    """Megatron's CudaRNGStatesTracker."""

    def __init__(self, states):
        self.states_ = states

    def get_states(self):
        return dict(self.states_)

    def set_states(self, states):
        self.states_ = states


def fake_megatron(monkeypatch, names, state=lambda: FakeCUDA(5).state):
    tracker = FakeTracker({name: state() for name in names})
    module = types.ModuleType("megatron.core.tensor_parallel.random")
    module.get_cuda_rng_tracker = lambda: tracker
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return tracker


def test_every_cuda_device(monkeypatch):
    fakes = fake_cuda(monkeypatch, 12)
    state = rng.get()
    assert [r.name for r in codec.parse(state) if r.place == codec.CUDA] == [str(i) for i in range(12)]
    for f in fakes:
        f.set_state(FakeCUDA(77).state)
    rng.set(state)
    assert [struct.unpack("<QQ", f.state.numpy().tobytes()) for f in fakes] == [(i, 8) for i in range(12)]


@pytest.mark.parametrize("n", [0, 1, 3])
def test_another_number_of_cuda_devices(monkeypatch, n):
    fake_cuda(monkeypatch, 2)
    state = rng.get()
    fake_cuda(monkeypatch, n)
    before = rng.get()
    random.random()
    moved = rng.get()
    with pytest.raises(Mismatch, match=f"generators of 2 CUDA devices, this process sees {n}"):
        rng.set(state)
    assert rng.get() == moved != before


def test_a_cuda_offset_that_torch_would_refuse(monkeypatch):
    fakes = fake_cuda(monkeypatch, 2)
    fakes[1].state[8] = 6
    with pytest.raises(Unsupported, match="the generator of CUDA device 1 is in a state that can't be kept: offset 6"):
        rng.get()


def test_megatrons_tracker(monkeypatch):
    names = ["model-parallel-rng", "data-parallel-rng"]
    tracker = fake_megatron(monkeypatch, names)
    state = rng.get()
    assert [r.name for r in codec.parse(state) if r.place == codec.MEGATRON] == sorted(names)
    kept = tracker.get_states()
    tracker.set_states({"other": FakeCUDA(1).state})
    rng.set(state)
    assert {k: v.tolist() for k, v in tracker.states_.items()} == {k: v.tolist() for k, v in kept.items()}
    monkeypatch.delitem(sys.modules, "megatron.core.tensor_parallel.random")
    with pytest.raises(Mismatch, match="Megatron's generator 'data-parallel-rng': the state has it, but Megatron's tracker is not loaded"):
        rng.set(state)


def test_megatrons_tracker_of_generators(monkeypatch):
    """With CUDA graphs it holds generators; they stay the same objects."""
    monkeypatch.setattr(rng, "_is_generator", lambda g: isinstance(g, FakeCUDA))
    tracker = fake_megatron(monkeypatch, ["a", "b"], lambda: FakeCUDA(5))
    held = tracker.get_states()
    state = rng.get()
    held["b"].set_state(FakeCUDA(6).state)
    rng.set(state)
    assert tracker.get_states() == held
    assert held["b"].state.tolist() == FakeCUDA(5).state.tolist()
    tracker.states_["c"] = FakeCUDA(1)
    with pytest.raises(Mismatch, match=r"Megatron's generators \['a', 'b'\], the tracker here has \['a', 'b', 'c'\]"):
        rng.set(state)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_cuda_devices():
    def draw():
        return [torch.randn(5, device=f"cuda:{i}").tolist() for i in range(torch.cuda.device_count())]

    g = torch.Generator("cuda").manual_seed(5)
    rng.add("g", g)
    draw()
    state = rng.get()
    assert len([r for r in codec.parse(state) if r.place == codec.CUDA]) == torch.cuda.device_count()
    first = draw(), torch.rand(3, device="cuda", generator=g).tolist()
    rng.set(state)
    assert (draw(), torch.rand(3, device="cuda", generator=g).tolist()) == first


# -- the bytes --------------------------------------------------------------------------------------------------------------


def test_golden_vectors():
    """What is checked in is what the same seeds give today; the Go package reads the same files."""
    for name, content in rng_golden.files().items():
        assert (rng_golden.DIR / name).read_bytes() == content, f"{name}: python tests/rng_golden.py writes it again; a difference needs a new version"
    for name in ("full.bin", "seeds.bin"):
        whole = (rng_golden.DIR / name).read_bytes()
        assert codec.pack(codec.parse(whole)) == whole


def test_torch_reads_what_it_wrote():
    """torch keeps every field that the layout has: its own bytes come back after a restore, samples included."""
    g = torch.Generator()
    for r in codec.parse((rng_golden.DIR / "full.bin").read_bytes()):
        if r.layout == codec.L_TORCH_CPU:
            g.set_state(rng._tensor(r.payload))
            assert g.get_state().numpy().tobytes() == r.payload
