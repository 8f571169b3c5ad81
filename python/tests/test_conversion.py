"""Tensors whose copies have another floating-point type than they have in the program, because it asked for that."""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import PATIENCE, Daemon
from replicad import Invalid, Mismatch
from replicad._torch.conversion import hint, holds, kept_dtypes
from replicad._torch.objects import Objects
from replicad._torch.staging import Staging
from replicad._torch.state import model_leaves, regions

SMALL = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16)
FLOATS = (*SMALL, torch.float32, torch.float64)


def every(dtype: torch.dtype) -> torch.Tensor:
    """Every value of a type of one or two bytes."""
    bits = torch.arange(1 << 8 * dtype.itemsize, dtype=torch.int32)
    return bits.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype)


@pytest.mark.parametrize(("live", "kept"), list(itertools.product(SMALL, FLOATS)))
def test_every_value(live: torch.dtype, kept: torch.dtype) -> None:
    """A type holds another exactly where every value comes back from it with the same bits."""
    values = every(live)
    number = ~values.double().isnan()
    stage = torch.empty(values.shape, dtype=kept).copy_(values)
    back = torch.empty_like(values).copy_(stage)
    integer = torch.uint8 if live.itemsize == 1 else torch.uint16
    same = bool((back.view(integer).int() == values.view(integer).int())[number].all())
    assert holds(kept, live) == same
    if same:
        assert back.double().isnan().equal(~number)


def test_wider_ones() -> None:
    assert holds(torch.float64, torch.float32)
    assert not holds(torch.float32, torch.float64)
    assert not any(holds(kept, live) for kept in SMALL for live in (torch.float32, torch.float64))


def test_which_tensors() -> None:
    """The first pattern that fits says it; numbers that are no floating-point ones stay what they are."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).bfloat16()
    found = list(model_leaves("model", model, lambda name: False))
    assert kept_dtypes(found, {}) == {}
    assert kept_dtypes(found, {"model.*": torch.bfloat16}) == {}
    got = kept_dtypes(found, {"model.0.bias": torch.float64, "model.*": torch.float32})
    assert got.pop("model.0.bias") == torch.float64
    assert got == {f"model.{k}": torch.float32 for k in ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var")}


def test_a_name_is_its_own_pattern() -> None:
    """What the hint says can be used: also where a name has what patterns are made of, and where messages have its end alone."""
    model = nn.ModuleDict({"a[0]": nn.Linear(2, 2, bias=False), "deep" * 40: nn.Linear(2, 2, bias=False)}).bfloat16()
    found = list(model_leaves("model", model, lambda name: False))
    for leaf, region in zip(found, regions(found), strict=True):
        (pattern,) = re.findall(r'kept_dtype=\{"(.*)": torch.float32\}', hint(f'"{region.name}" is BF16, was F32'))
        assert kept_dtypes(found, {pattern: torch.float32}) == {leaf.name: torch.float32}


def test_a_type_of_which_torch_knows_no_limits() -> None:
    """Two numbers in a byte: it stays as it is, also where others are to be converted."""
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4")
    model = nn.Linear(2, 2).bfloat16()
    model.register_buffer("packed", torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    found = list(model_leaves("model", model, lambda name: False))
    assert kept_dtypes(found, {}) == {}
    assert kept_dtypes(found, {"model.weight": torch.float32}) == {"model.weight": torch.float32}
    with pytest.raises(Invalid, match=r"model\.packed is float4_e2m1fn_x2 here, and float32 does not hold"):
        kept_dtypes(found, {"model.*": torch.float32})
    with pytest.raises(Invalid, match=r"model\.weight is bfloat16 here, and float4_e2m1fn_x2 does not hold"):
        kept_dtypes(found, {"model.weight": torch.float4_e2m1fn_x2})


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"model.1.*": torch.float32}, r"kept_dtype: no floating-point tensor of this session has a name like 'model\.1\.\*'; the first is 'model\.0\.weight'"),
        ({"model.0.weight": "float32"}, r"kept_dtype: 'model.0.weight': want a floating-point torch.dtype, not 'float32'"),
        ({"model.0.weight": torch.int32}, r"kept_dtype: 'model.0.weight': want a floating-point torch.dtype, not torch.int32"),
        ({"model.0.weight": torch.complex64}, r"want a floating-point torch.dtype, not torch.complex64"),
        ({"model.0.weight": torch.float16}, r"model.0.weight is bfloat16 here, and float16 does not hold all of its values: its copies would be rounded.*begin a new job"),
        ({3: torch.float32}, r"kept_dtype: 3: want a pattern of names"),
        (torch.float32, r"kept_dtype: want a dict of patterns of names and types, not torch.float32"),
    ],
)
def test_refused(asked: object, says: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2)).bfloat16()
    with pytest.raises(Invalid, match=says):
        kept_dtypes(model_leaves("model", model, lambda name: False), asked)  # type: ignore[arg-type]


TRAIN = """
import hashlib, os, signal, sys
import torch, replicad
from torch import nn

kinds, last, kill, mark = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)


def opened(kind):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).to({"full": torch.float32, "finer": torch.float64}.get(kind, torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    kept = {"model.*": torch.float32, "optim.*": torch.float32} if kind == "asked" else None
    return model, optimizer, replicad.Session(model=model, optimizer=optimizer, kept_dtype=kept)


def bits():
    held = [*model.state_dict().values(), *(v for p in model.parameters() for _, v in sorted(optimizer.state[p].items()))]
    return hashlib.sha256(b"".join(t.detach().bfloat16().reshape(-1).view(torch.uint8).numpy().tobytes() for t in held)).hexdigest()[:16]


for kind in kinds:
    model, optimizer, session = opened(kind)
    try:
        at = session.resume()
        break
    except replicad.Mismatch as err:
        os.write(1, f"MISMATCH {kind} {err}\\n".encode())
        session.close()
print("RESUMED", kind, int(at), at.source, bits(), flush=True)
dtype = model[0].weight.dtype
assert dtype == (torch.float32 if kind == "full" else torch.bfloat16)
for step in range(at + 1, last + 1):
    optimizer.zero_grad()
    model(torch.randn(3, 4).to(dtype)).square().sum().backward()
    with session.step():
        optimizer.step()
        if step == kill and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    session.commit()
print("ENDED", kind, bits(), flush=True)
while kind == "full" and not os.path.exists(mark):
    session.rank.wait_fence(0.02)
print(session.explain())
session.leave()
session.close()
"""


def test_another_type_than_the_copy(daemon: Daemon, tmp_path: Path) -> None:
    """Refused by name where it was not asked for; where it was, the copy's values are rounded once, which is logged."""
    name = f"convert-{os.getpid()}"
    job = daemon.run(TRAIN, "full", "4", "0", str(tmp_path / "written"), name=name, flags=("--durable-every", "2"))
    rounded = job.until("ENDED").split()[2]
    end = time.monotonic() + PATIENCE
    while not re.search(r"^durable +\(1,4\)", daemon.verb("status", "--dev"), re.M):
        assert time.monotonic() < end, "the last generation is not written"
    (tmp_path / "written").touch()
    assert "float32 in the copies" not in job.done()

    load_file = pytest.importorskip("safetensors.torch").load_file
    (file,) = daemon.dir.glob(f"**/{name}/*/step-00000004.e1/group-0.*.safetensors")
    held = load_file(file)
    assert held["model.0.weight"].dtype == torch.float32 and held["optim.model.0.weight.exp_avg"].shape == (8, 4), list(held)

    out = daemon.run(TRAIN, "finer,plain,asked", "8", "0", "", name=name, flags=("--resume",)).done()
    said = re.search(r"^MISMATCH plain (.*)$", out, re.M)
    assert said and '"model.0.weight" is BF16, was F32' in said[1] and "kept_dtype" in said[1], out
    said = re.search(r"^MISMATCH finer (.*)$", out, re.M)
    assert said and '"model.0.weight" is F64, was F32' in said[1] and "begin a new job from its durable generation's files" in said[1], out
    assert f"RESUMED asked 4 durable {rounded}" in out, out
    assert "step 4: 20 tensors are float32 in the copies and bfloat16 here, as kept_dtype asks: rounded at load (model.0.weight, model.0.bias, " in out, out
    assert "float32 in the copies" in out.split("ENDED")[1], out


def test_killed(daemon: Daemon, tmp_path: Path) -> None:
    """What is kept wider than it is loses nothing: a run that is killed ends with the bits of one that was not."""
    ends = []
    for kill in (0, 5):
        out = daemon.run(TRAIN, "asked", "8", str(kill), str(tmp_path / "mark")).done()
        ends.append(re.findall(r"^ENDED asked (\S+)$", out, re.M))
        assert ("RESUMED asked 4" in out) == (kill > 0), out
    assert len(ends[0]) == 1
    assert ends[0] == ends[1]


LARGE = """
import os, signal, sys
import torch, replicad
from torch import nn

mark = sys.argv[1]
again = os.path.exists(mark)
model = nn.Linear(2, 2)
nn.init.constant_(model.weight, 1e6)
if again:
    model.half()
session = replicad.Session(model=model, kept_dtype={"model.*": torch.float32} if again else None)
try:
    session.resume()
except replicad.Mismatch as err:
    os.write(1, f"REFUSED {err}\\n".encode())
    raise
with session.step():
    model.weight.data.add_(1)
session.commit()
open(mark, "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_too_large(daemon: Daemon, tmp_path: Path) -> None:
    """What would be infinite here is not loaded as if it had been rounded."""
    job = daemon.run(LARGE, str(tmp_path / "mark"))
    job.until(r"REFUSED kept_dtype: model.weight has finite values in the copy that are too large for float16")
    job.kill()


def test_tied_over_two_models() -> None:
    """They are one tensor in the copies, with stages and without: a job that was begun without goes on."""
    a, b = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2).bfloat16()
    b.weight = a.weight
    objects = Objects({"model": {"a": a, "b": b}}, lambda name: False, False)
    kept = kept_dtypes(objects.leaves, {"model.*": torch.float32})
    tables = [[r.name for r in regions(Staging(objects.leaves, always, of).leaves)] for always, of in ((False, {}), (True, {}), (False, kept))]
    assert tables == [["model.a.weight", "model.a.bias", "model.b.bias"]] * 3
    staging = Staging(objects.leaves, False, kept)
    staging.all()
    with torch.no_grad():
        was = a.weight.clone()
        a.weight.zero_()
    staging.back(1)
    assert a.weight.equal(was)
    untied = {"model": {"a": nn.Linear(2, 2).bfloat16(), "b": nn.Linear(2, 2).bfloat16()}}
    with pytest.raises(Mismatch, match=r"model\.b\.weight is bfloat16 \(2, 2\), trained, was bfloat16 \(2, 2\), trained, the same as model\.a\.weight"):
        objects.replaced(untied)
