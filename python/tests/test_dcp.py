"""torch.distributed.checkpoint over generations: what it saves and loads, on any number of ranks, is what its own files would give."""

from __future__ import annotations

import enum
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import unittest
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import cluster
from conftest import PATIENCE, ROOT, Daemon
from ranks import Ranks
from replicad import Corrupt, Gone
from replicad._core import capsule, generations
from replicad.dcp import Reader, Writer, _runs

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of a single process


#: What torch raises where a rank has failed is no Exception.
FAILS = (Exception, CheckpointException)


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICAD", str(cluster.REPLICAD))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    os.environ["REPLICAD"] = str(cluster.REPLICAD)
    with Ranks(4) as four:
        yield four
    del os.environ["REPLICAD"]


def command(*args: object, code: int = 0) -> str:
    done = subprocess.run([str(cluster.REPLICAD), "ckpt", *map(str, args)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code, done.stderr
    return done.stdout


def state(seed: int = 1) -> dict[str, Any]:
    """Of each kind that a state dict may have."""
    g = torch.Generator().manual_seed(seed)
    kinds = [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int8, torch.uint8, torch.bool]
    return {
        "model": {f"w{i}": torch.randn(30, 70, generator=g) for i in range(3)} | {"large": torch.randn(700, 1500, generator=g)},
        "kinds": {str(k).removeprefix("torch."): (torch.randn(5, 7, generator=g) * 9).to(k) for k in kinds},
        "number": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "turned": torch.randn(40, 30, generator=g).t(),
        "some": torch.randn(40, 30, generator=g)[::2, 3:9],
        "parameter": nn.Parameter(torch.randn(3, generator=g)),
        "list": [torch.ones(2), 5],
        "values": {"lr": 0.1, "none": None, "yes": True, "inf": math.inf, "big": 1 << 80, "text": "é\0", "bytes": b"\x80abc", "nested": [1, ("a", {"x": (1, b"2")})]},
    }


def emptied(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.zeros(x.shape, dtype=x.dtype)
    if isinstance(x, dict):
        return {k: emptied(v) for k, v in x.items()}
    return [emptied(v) for v in x] if isinstance(x, list) else "?"


def bits(x: Any) -> Any:
    """What is compared: types, shapes and bits."""
    if isinstance(x, torch.Tensor):
        flat = x.detach().contiguous().reshape(-1)
        return (str(x.dtype), tuple(x.shape), bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b"")
    if isinstance(x, dict):
        return {k: bits(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return (type(x).__name__, [bits(v) for v in x])
    return (type(x).__name__, x)


#: A key of age's for tests, and whose it is.
KEY = "AGE-SECRET-KEY-14DJERCTW8NSV8SU6CMW3VMLCFRYTNRR7DFGXYAFS5VH6HYTRYK4SP6P6C0"
RECIPIENT = "age1mae8jgauc0tk75x5pd8433yu5rv08xe30wggyp4c2320e5k3hv4qcv7jku"


def test_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encrypted generation is read with the key that the environment names, and without it nothing is loaded."""
    given = state()
    for name in ("plain", "sealed"):
        (tmp_path / name).mkdir()
    dcp.save(given, storage_writer=Writer(str(tmp_path / "plain"), "lm", 7))
    command("cp", tmp_path / "plain" / "lm", tmp_path / "sealed", "--recipient", RECIPIENT)
    into = emptied(given)
    with pytest.raises(FAILS, match=rf"step 7 of .* is encrypted to {RECIPIENT}: .*REPLICAD_IDENTITY"):
        dcp.load(into, storage_reader=Reader(str(tmp_path / "sealed" / "lm")))
    assert bits(into) == bits(emptied(given))
    (tmp_path / "key.txt").write_text(KEY + "\n")
    (tmp_path / "key.txt").chmod(0o600)
    monkeypatch.setenv("REPLICAD_IDENTITY", str(tmp_path / "key.txt"))
    dcp.load(into, storage_reader=Reader(str(tmp_path / "sealed" / "lm")))
    assert bits(into) == bits(given)


def test_written_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to recipients is read with one's key, and shows neither names nor the program's arguments. What would follow in the clear is refused."""
    given, root = state(), tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(sys, "argv", ["train.py", "--wandb-key=5ec4e7a46um3n7"])
    with pytest.raises(FAILS, match="name the file with the key of one recipient in REPLICAD_IDENTITY"):
        dcp.save(given, storage_writer=Writer(str(root), "lm", 7, recipients=[RECIPIENT]))
    (tmp_path / "key.txt").write_text(KEY + "\n")
    (tmp_path / "key.txt").chmod(0o600)
    monkeypatch.setenv("REPLICAD_IDENTITY", str(tmp_path / "key.txt"))
    dcp.save(given, storage_writer=Writer(str(root), "lm", 7, recipients=[RECIPIENT]))
    monkeypatch.setenv("REPLICAD_RECIPIENTS", RECIPIENT)
    dcp.save(given, storage_writer=Writer(str(root), "lm"))
    into = emptied(given)
    dcp.load(into, storage_reader=Reader(str(root / "lm"), "8"))
    assert bits(into) == bits(given)
    for file in (p for p in root.rglob("*") if p.is_file()):
        assert not any(word in file.read_bytes() for word in (b"5ec4e7a46um3n7", b"parameter", KEY.encode())), file
    monkeypatch.delenv("REPLICAD_RECIPIENTS")
    with pytest.raises(FAILS, match=r"step 8 of job lm in .* is encrypted, and the next one would not be: name to whom in REPLICAD_RECIPIENTS"):
        dcp.save(given, storage_writer=Writer(str(root), "lm"))
    dcp.save(given, storage_writer=Writer(str(root), "plain"))
    assert any(b"5ec4e7a46um3n7" in p.read_bytes() for p in (root / "plain").rglob("*.json"))


def test_the_next_process_goes_on_counting(tmp_path: Path) -> None:
    """Without a step a generation comes behind all that the job has, whichever process wrote them: it is the newest by its number, too."""
    for step in (100, None, None):
        _runs.clear()  # as another process
        dcp.save({"w": torch.full((3,), float(step or 0))}, storage_writer=Writer(str(tmp_path), "lm", step))
    assert [row["step"] for row in json.loads(command("ls", tmp_path / "lm", "--json"))] == [102, 101, 100]


def test_beside_torchs_own_files(tmp_path: Path) -> None:
    """The same state dict through FileSystemWriter and Writer is the same to the bit, and so are its names, shapes, types and pieces."""
    given = state()
    dcp.save(given, storage_writer=dcp.FileSystemWriter(tmp_path / "torch"))
    dcp.save(given, storage_writer=Writer(str(tmp_path), "lm", 7))
    loaded, theirs = emptied(given), emptied(given)
    dcp.load(theirs, storage_reader=dcp.FileSystemReader(tmp_path / "torch"))
    dcp.load(loaded, storage_reader=Reader(str(tmp_path)))
    assert bits(loaded) == bits(theirs) == bits(given)
    whole = _load_state_dict_from_keys(storage_reader=Reader(f"{tmp_path}/lm@7"))
    assert bits(whole) == bits(_load_state_dict_from_keys(storage_reader=dcp.FileSystemReader(tmp_path / "torch")))

    def said(of: Any) -> dict[str, Any]:
        entries = of.read_metadata().state_dict_metadata
        return {k: (m.size, m.properties.dtype, [(c.offsets, c.sizes) for c in m.chunks]) if isinstance(m, TensorStorageMetadata) else None for k, m in entries.items()}

    reader = Reader(str(tmp_path))
    assert said(reader) == said(dcp.FileSystemReader(tmp_path / "torch"))
    reader.close()


def test_long_names_are_kept_whole(tmp_path: Path) -> None:
    """Regions have names of at most 127 bytes; what a program, a command and a file see is the whole name, and its place in the state dict."""
    deep: dict[str, Any] = {"w": torch.arange(5.0)}
    for k in range(30):
        deep = {f"block{k:02}": deep}
    given = {"model": deep, "ä" * 2048: torch.arange(3), "x" * 128: torch.ones(2, dtype=torch.bfloat16), "v" * 300: 3}
    dcp.save(given, storage_writer=Writer(str(tmp_path), "lm", 1))
    loaded = emptied(given)
    dcp.load(loaded, storage_reader=Reader(str(tmp_path)))
    assert bits(loaded) == bits(given)
    assert bits(_load_state_dict_from_keys(storage_reader=Reader(str(tmp_path)))) == bits(given)
    command("export", f"{tmp_path}/lm@1", tmp_path / "out", "--to", "safetensors")
    names = {name for p in (tmp_path / "out").glob("*.safetensors") for name in json.loads(p.read_bytes()[8 : 8 + int.from_bytes(p.read_bytes()[:8], "little")])}
    path = "model." + "".join(f"block{k:02}." for k in reversed(range(30))) + "w"
    assert {path, "ä" * 2048, "x" * 128} <= names


def test_commands_read_what_was_saved(tmp_path: Path) -> None:
    root = tmp_path / "a"
    root.mkdir()
    (tmp_path / "b").mkdir()
    for i in (1, 2):
        dcp.save(state(i), storage_writer=Writer(str(root), "lm", metrics={"loss": 1.0 / i, "nan": math.nan}, notes={"data": "v2"}))
    dcp.save(state(), checkpoint_id="90", storage_writer=Writer(str(root), "lm"))
    dcp.save(state(), storage_writer=Writer(str(root), "lm"))
    rows = json.loads(command("ls", "--json", root))
    assert [(r["step"], r["state"]) for r in rows] == [(91, "good"), (90, "good"), (2, "good"), (1, "good")]
    assert len({r["run"] for r in rows}) == 1
    assert "loss=0.5" in command("ls", root)
    assert "good" in command("verify", f"{root}/lm@2")
    shown = command("show", "--tensors", f"{root}/lm@2")
    assert "model.large" in shown
    assert "torch" in shown
    assert "data=v2" in shown.replace(" ", "") or "v2" in shown
    assert "model.w0" in command("diff", f"{root}@1", f"{root}@2", code=1)
    command("cp", f"{root}@2", tmp_path / "b")
    loaded = emptied(state())
    dcp.load(loaded, storage_reader=Reader(str(tmp_path / "b"), job="lm"))
    assert bits(loaded) == bits(state(2))
    dcp.load(loaded, storage_reader=Reader(str(root), at="best"))
    assert bits(loaded) == bits(state(2))
    dcp.load(loaded, checkpoint_id="1", storage_reader=Reader(str(root)))
    assert bits(loaded) == bits(state(1))
    assert not list(root.glob("lm/*/pins/*")), "a lease is left"


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("obj", object(), "obj: it can't be kept without pickle"),
        ("enum", Colour.RED, "enum: it can't be kept without pickle"),
        ("set", {1, 2}, "set: "),
        ("dtype", torch.float32, "dtype: torch.dtype can't be kept without pickle: make it a text"),
        ("complex", torch.ones(2, dtype=torch.complex128), "complex: generations have no tensors of complex128: torch.view_as_real"),
        ("deep", torch.ones([1] * 9), "deep: 9 dimensions, at most 8"),
        ("x" * 4097, torch.ones(1), "want a name of 1 to 4096 bytes"),
        ("replicad.layout", torch.ones(1), "'replicad.layout': want a name"),
    ],
)
def test_what_cant_be_kept_is_named(tmp_path: Path, name: str, value: Any, why: str) -> None:
    with pytest.raises(FAILS, match=r".") as refused:
        dcp.save({"w": torch.ones(3), name: value}, storage_writer=Writer(str(tmp_path), "lm"), planner=DefaultSavePlanner())
    assert why in str(refused.value)
    assert not list(tmp_path.glob("*/*/commits/*"))


def test_refused_uses(tmp_path: Path) -> None:
    root = str(tmp_path)
    save: Callable[..., Any] = lambda **of: dcp.save({"w": torch.ones(3)}, storage_writer=Writer(root, "lm", **of))  # noqa: E731
    save(step=3)
    refusals: list[tuple[Callable[[], Any], str]] = [
        (lambda: save(step=3), r"step 3 of run \S+ of job lm is written already: give the next one another step"),
        (lambda: save(step=-1), r"step=-1: want a number of 0 or more"),
        (lambda: dcp.save({}, checkpoint_id="dir/x", storage_writer=Writer(root, "lm")), r"checkpoint_id='dir/x': .* takes the step's number"),
        (lambda: dcp.save({}, storage_writer=Writer(root, "../x")), r"job: "),
        (lambda: Reader(root, "soon").read_metadata(), r"@soon names no generation: want @STEP"),
        (lambda: Reader(root, "4").read_metadata(), r"there is no generation of step 4"),
        (lambda: Reader(root, job="other").read_metadata(), r"no generation that is whole: see `replicad ckpt ls`"),
        (lambda: Reader(f"{root}@3", "3").read_metadata(), r"names a generation, and so does 3: give one of them"),
        (lambda: Reader(str(tmp_path.parent / "none")).read_metadata(), r"no checkpoints of replicad's are there"),
        (lambda: Reader("ftp://x").read_metadata(), r'scheme "ftp" are not known: want file:///DIRECTORY'),
        (lambda: Reader("").read_metadata(), r"'' names no store: want a directory"),
        (lambda: Reader(root, names={"w*": "v"}).read_metadata(), r"names: 'w\*': 'v': want one star in both"),
        (lambda: Reader(root, program="/nonexistent").read_metadata(), r"/nonexistent can't be started: .*: install the wheel"),
        (lambda: Reader(root).read_data(dcp.LoadPlan([]), DefaultLoadPlanner()), r"read_metadata comes first"),
    ]
    for act, why in refusals:
        with pytest.raises(FAILS, match=why):
            act()
    with pytest.raises(FAILS, match=r"Missing key in checkpoint state_dict: v"):
        dcp.load({"v": torch.ones(3)}, storage_reader=Reader(root))
    save(step=4)
    dcp.save({"w": torch.ones(3)}, storage_writer=Writer(root, "other"))
    with pytest.raises(FAILS, match=r"has the jobs lm, other: say which, as (file|s3)://.+/lm"):
        Reader(root).read_metadata()


def test_no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REPLICAD")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(Gone, match=r"no replicad program on the path.*: install the wheel, or set REPLICAD"):
        Reader(str(tmp_path)).read_metadata()


def test_names(tmp_path: Path) -> None:
    dcp.save({"model": {"a": torch.ones(2), "b": torch.zeros(2)}, "lr": 0.5}, storage_writer=Writer(str(tmp_path), "lm"))
    for names in ({"model.*": "net.module.*", "lr": "rate"}, lambda name: {"lr": "rate", "model.b": None}.get(name, name.replace("model.", "net.module."))):
        into: dict[str, Any] = {"net": {"module": {"a": torch.zeros(2)}}, "rate": None}
        dcp.load(into, storage_reader=Reader(str(tmp_path), names=names))
        assert bits(into) == bits({"net": {"module": {"a": torch.ones(2)}}, "rate": 0.5})
    with pytest.raises(FAILS, match=r"names: 'model.a' and 'model.b' both become 'x'"):
        Reader(str(tmp_path), names=lambda _: "x").read_metadata()


def files(root: Path, pattern: str) -> list[Path]:
    found = sorted(root.glob(f"lm/*/{pattern}"))
    assert found
    return found


def test_damage_is_named(tmp_path: Path) -> None:
    """Bytes that rotted never come as others: file and chunk are named. What is missing is, too; a frozen file has a twin."""
    dcp.save(state(), storage_writer=Writer(str(tmp_path), "lm"))
    (group,) = files(tmp_path, "step-*/group-0.*")
    whole = group.read_bytes()

    def load() -> None:
        dcp.load({"model": {"large": torch.zeros(700, 1500)}}, storage_reader=Reader(str(tmp_path)))

    load()
    group.write_bytes(whole[:-2_000_000] + bytes([whole[-2_000_000] ^ 1]) + whole[-1_999_999:])
    with pytest.raises(FAILS, match=r"step-00000001\.e1/group-0\.w1\.safetensors: chunk \d+ at offset \d+: corrupt: digest") as damage:
        load()
    assert isinstance(damage.value.failures[0][0], Corrupt)
    assert "counts for nothing from now on" in str(damage.value.failures[0][0])
    dcp.save(state(), storage_writer=Writer(str(tmp_path), "lm", step=0))
    load()  # an older one that is whole
    files(tmp_path, "step-00000000*/group-0.*")[0].unlink()
    group.write_bytes(whole[:-1])
    with pytest.raises(FAILS, match=r"no generation that is whole: see `replicad ckpt ls`"):
        load()
    group.write_bytes(whole)
    subprocess.run([str(cluster.REPLICAD), "ckpt", "verify", f"{tmp_path}/lm@1"], check=True, capture_output=True)  # it was mended
    files(tmp_path, "frozen/group-0-*.a.*")[0].unlink()
    load()


def test_state_that_is_none_of_ours(tmp_path: Path) -> None:
    """Private state that somebody else put there is read as plain values, and refused where it says anything else."""
    for i, (private, why) in enumerate(
        [(b"nothing", "capsule"), (capsule.pack([1]), "holds no state"), (capsule.pack({"version": 9, "values": {}, "paths": {}}), "has version 9")]
    ):
        attempt = generations.begin(str(tmp_path), f"j{i}", str(uuid.uuid4()), "f", 1, 1, time.time_ns() // 10**6)
        report = generations.put(attempt, 0, [], list, capsule.pack({"version": 1, "tensors": {}}))
        generations.commit(attempt, [report], private)
        with pytest.raises(FAILS, match=why):
            Reader(str(tmp_path), job=f"j{i}").read_metadata()


def test_a_program_that_dies(tmp_path: Path) -> None:
    dcp.save(state(), storage_writer=Writer(str(tmp_path), "lm"))
    generation = generations.Generation.open(str(tmp_path))
    (piece,) = generation.tensors["model.large"].pieces
    process = generation._pipe._process
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGKILL)
    with pytest.raises(Gone, match=r"replicad ckpt pipe .* is gone: signal 9 killed it: nothing was committed, and what was being read is not whole"):
        generation.load(piece)
    assert process.poll() is not None
    script = tmp_path / "replicad"
    for text, why in (("exit 3", "is gone: it ended with status 3; what it printed says why"), ("read line; echo nonsense", "are program and package of one release?")):
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        with pytest.raises(FAILS, match=why.replace("?", r"\?")):
            Reader(str(tmp_path), program=str(script)).read_metadata()


def test_all_ranks_read_what_the_coordinator_found(tmp_path: Path) -> None:
    """A rank that found another generation than the coordinator reads the coordinator's."""
    for i in (1, 2):
        dcp.save({"w": torch.full((3,), float(i))}, storage_writer=Writer(str(tmp_path), "lm", i))
    first, second = Reader(str(tmp_path), "1"), Reader(str(tmp_path))
    plans = []
    planners = []
    into = [{"w": torch.zeros(3)} for _ in range(2)]
    for reader, sd in zip((first, second), into, strict=True):
        planners.append(planner := DefaultLoadPlanner())
        planner.set_up_planner(sd, reader.read_metadata(), True)
        plans.append(planner.create_local_plan())
    told = first.prepare_global_plan(plans)
    for reader, planner, plan in zip((first, second), planners, told, strict=True):
        reader.read_data(plan, planner).wait()
    assert [float(sd["w"][0]) for sd in into] == [1.0, 1.0]


def test_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any box of a piece is put together from its runs, none of which reads a gap that could have been left out."""
    monkeypatch.setattr(generations, "GAP", 24)
    monkeypatch.setattr(generations, "MOST", 64)
    draw = random.Random(1)
    for _ in range(500):
        shape = [draw.randint(1, 6) for _ in range(draw.randint(0, 4))]
        starts = [draw.randrange(n) for n in shape]
        lengths = [draw.randint(1, n - s) for n, s in zip(shape, starts, strict=True)]
        piece = torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
        want = piece[tuple(slice(s, s + n) for s, n in zip(starts, lengths, strict=True))]
        got = torch.full_like(want, -1)
        for run in generations.box(shape, 4, starts, lengths):
            read = piece.reshape(-1)[run.start // 4 : (run.start + run.nbytes) // 4].reshape(run.shape)
            to = got[run.to] if run.to else got
            to.copy_(read[run.inner].reshape(to.shape))
        assert torch.equal(got, want), (shape, starts, lengths)
    assert [(r.start, r.nbytes) for r in generations.box((4, 10), 4, (1, 2), (2, 3))] == [(48, 12), (88, 12)], "rows that lie far apart"
    assert [(r.start, r.nbytes) for r in generations.box((4, 10), 4, (1, 0), (3, 10))] == [(40, 120)], "rows that lie together"
    assert generations.box((4, 0), 4, (0, 0), (4, 0)) == []


# -- on several ranks ---------------------------------------------------------------------------------------------------


def grids(world: int, fill: bool) -> dict[str, Any]:
    """DTensors of all layouts over the first ranks, with the same values whatever the world is."""
    g = torch.Generator().manual_seed(3)
    line = DeviceMesh("cpu", list(range(world)))
    out: dict[str, Any] = {}
    shapes = {"even": (12, 5), "uneven": (7, 3), "few": (2, 4), "wide": (3, 12 * 65536)}
    for (name, shape), (how, place) in itertools.product(shapes.items(), {"rows": Shard(0), "columns": Shard(1), "whole": Replicate()}.items()):
        whole = torch.randn(shape, generator=g)
        out[f"{name}.{how}"] = distribute_tensor(whole if fill else torch.zeros(shape), line, [place], src_data_rank=None)
    if world % 2 == 0:
        square = DeviceMesh("cpu", torch.arange(world).reshape(2, -1))
        whole = torch.randn(8, 6, generator=g)
        out["square"] = distribute_tensor(whole if fill else torch.zeros(8, 6), square, [Shard(0), Shard(1)], src_data_rank=None)
        out["hybrid"] = distribute_tensor(whole if fill else torch.zeros(8, 6), square, [Replicate(), Shard(0)], src_data_rank=None)
    return out | {"plain": torch.full((3,), 4.0 if fill else 0.0), "step": 11 if fill else 0}


def save_grids(rank: int, root: str) -> None:
    dcp.save(grids(4, True), storage_writer=Writer(root, "lm"))
    response = dcp.async_save(grids(4, True), storage_writer=Writer(root, "lm"))
    getattr(response, "upload_completion", response).result()


def load_grids(rank: int, root: str, world: int, at: str) -> bool:
    group = dist.new_group(list(range(world)))
    into, want = grids(world, False), grids(world, True)  # groups of some ranks are made by all
    if rank >= world:
        return True
    dcp.load(into, storage_reader=Reader(root, at), process_group=group)
    local: Callable[[Any], Any] = lambda x: x.to_local() if hasattr(x, "to_local") else x  # noqa: E731
    differ = [k for k in into if bits(local(into[k])) != bits(local(want[k]))]
    assert not differ, differ
    return True


def test_four_ranks_to_any(ranks: Ranks, tmp_path: Path) -> None:
    """What four ranks saved is loaded on one, two and three, and in a process without a group."""
    root = str(tmp_path)
    ranks(save_grids, root)
    assert [r["step"] for r in json.loads(command("ls", "--json", root))] == [2, 1]
    command("verify", "--all", root)
    for world, at in ((1, "1"), (2, "last"), (3, "1")):
        ranks(load_grids, root, world, at)
    whole = _load_state_dict_from_keys(storage_reader=Reader(root))
    g = torch.Generator().manual_seed(3)
    assert torch.equal(whole["even.rows"], torch.randn(12, 5, generator=g))
    with generations.Generation.open(root) as generation:
        assert generation.world == 4
        t = generation.tensors["even.rows"]
        assert (t.shape, t.placements, t.mesh, [p.at for p in t.pieces]) == ((12, 5), ("shard(0)",), (4,), [(3 * i, 0) for i in range(4)])
        assert generation.tensors["square"].placements == ("shard(0)", "shard(1)")
        assert len(generation.tensors["even.whole"].pieces) == 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Any) -> Any:
        return self.down(self.norm(self.up(x))) * self.scale


def trained(shards: bool, steps: int, seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model: Any = Net()
    if shards:
        fully_shard(model.up)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
    for _ in range(steps):
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def verified(rank: int, root: str) -> None:
    """As torch's own tests judge a checkpoint: a sharded model's state dict against an unsharded one's."""
    from torch.testing._internal.distributed.common_state_dict import VerifyStateDictMixin

    class Judge(unittest.TestCase, VerifyStateDictMixin):
        def assertEqual(self, first: Any, second: Any, msg: Any = None) -> None:  # noqa: N802 - as unittest calls it
            assert bits(first) == bits(second), msg

    judge = Judge()
    plain, plain_optimizer = trained(False, 3, 1)
    model, optimizer = trained(True, 3, 1)
    saved = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
    dcp.save(saved, storage_writer=Writer(root, "lm"))
    fresh, fresh_optimizer = trained(True, 1, 2)
    into = dict(zip(("model", "optim"), get_state_dict(fresh, fresh_optimizer), strict=True))
    dcp.load(into, storage_reader=Reader(root))
    set_state_dict(fresh, fresh_optimizer, model_state_dict=into["model"], optim_state_dict=into["optim"])
    msd, osd = get_state_dict(fresh, fresh_optimizer)
    judge._verify_msd(plain.state_dict(), msd)
    judge._verify_osd(plain, plain_optimizer, plain_optimizer.state_dict(), osd)
    judge._verify_osd_by_load(plain, plain_optimizer, torch.optim.AdamW(plain.parameters(), lr=0.5), osd)


def test_torchs_own_judge(ranks: Ranks, tmp_path: Path) -> None:
    pytest.importorskip("torch.testing._internal.distributed.common_state_dict")
    ranks(verified, str(tmp_path))


JOB = """
import os, time
import torch
import replicad
from torch import nn
from torch.distributed.fsdp import fully_shard
from replicad.store import init_process_group

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 3))
model.register_buffer("scale", torch.full((3,), 2.5))
connection = replicad.connect()
init_process_group(connection)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
with replicad.Session(model=model, optimizer=optimizer, connection=connection) as session:
    session.resume()
    for step in range(1, 4):
        model(torch.ones(2, 4)).sum().backward()
        with session.step():
            optimizer.step()
            optimizer.zero_grad()
    session.save(wait=True)
    whole = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in model.state_dict().items()}
    state = {f"{k}.{n}": v.full_tensor() for (k, p) in model.named_parameters() for n, v in optimizer.state[p].items() if n.startswith("exp")}
    if replicad.place()[0] == 0:
        torch.save([whole, state], os.environ["OUT"])
"""


def test_a_job_of_replicads(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation of an FSDP2 job on two ranks is loaded whole by a process without a group, which is no job's."""
    name, out = f"dcp-{os.getpid()}", tmp_path / "out"
    program = JOB.replace('os.environ["OUT"]', repr(str(out)))
    daemon.run(program, world=2, name=name, flags=("--durable-every", "3", "--groups", "0,1")).done()
    whole, moments = torch.load(out, weights_only=True)
    reader = Reader(str(daemon.dir / "replicad-dev" / "durable"), job=name, names={"model.*": "*"})
    into = emptied(whole)
    dcp.load(into, storage_reader=reader)
    assert bits(into) == bits(whole)
    reader = Reader(str(daemon.dir / "replicad-dev" / "durable"), job=name, names={"optim.model.*": "*", "model.*": "params.*"})
    names = list(reader.read_metadata().state_dict_metadata)
    assert set(moments) <= set(names), names
    into = emptied(moments)
    dcp.load(into, storage_reader=reader)
    assert bits(into) == bits(moments)


def test_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same over S3: the program takes address and keys from the environment, as Amazon's own tools do."""
    server = ROOT / "bin" / "tools" / "stores"
    if not server.exists():
        pytest.skip("bin/tools/stores is missing: make installs builds it")
    process = subprocess.Popen([str(server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", address if "://" in address else f"http://{address}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        dcp.save(state(), storage_writer=Writer("s3://plain/ckpt", "lm"))
        into = emptied(state())
        dcp.load(into, storage_reader=Reader("s3://plain/ckpt/lm"))
        assert bits(into) == bits(state())
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
        with pytest.raises(FAILS, match=r"the secret key is wrong"):
            dcp.load(into, storage_reader=Reader("s3://plain/ckpt/lm"))
    finally:
        process.kill()
        process.communicate()
