"""What a run says of itself is in its durable checkpoints: notes, metrics, versions, the epoch of its data."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, cast
from uuid import UUID

import pytest
import torch

import replicad
from conftest import Daemon
from nodes import cluster
from replicad._core import admin, native, saving
from replicad._core.rank import Rank
from replicad._core.remarks import MOST, Remarks

#: A model that is trained for an epoch of three steps after another, and saves each. Arguments: the last step, the note "lr".
TRAIN = """
import sys
import torch, replicad

torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = replicad.data.Loader(torch.arange(6).float().reshape(6, 1).expand(6, 4), batch_size=1, seed=1, version="six@sha256:7")
last = int(sys.argv[1])
with replicad.Session(model, optimizer, data=loader) as session:
    session.note(lr=sys.argv[2], place=f"rank {session.rank.number}")
    at = session.resume()
    if at == 0:
        session.metric(loss=float("nan"))
    batches = loader.endless()
    for step in session.steps(last):
        next(batches)
        with session.step():
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.metric(loss=step + 0.5 + 100 * session.rank.number)
        if step == 2:
            session.metric(accuracy=0.25, scale=1.0)
        if step == 6:
            session.metric(scale=torch.tensor(float("inf")))
        if step % 3 == 0:
            assert session.save(wait=True, keep=f"epoch {step // 3}" if step == 3 else "") == step
    if at == 0:
        print("AGAIN", session.save(wait=True, keep="the end"), flush=True)
"""


def checkpoints(daemon: Daemon, name: str) -> tuple[str, dict[int, dict[str, Any]]]:
    """Where they lie, and the line of `ckpt ls --json` of each step."""
    where = f"{daemon.dir}/replicad-dev/durable/{name}"
    return where, {row["step"]: row for row in json.loads(daemon.verb("ckpt", "ls", where, "--json"))}


def test_said_in_checkpoints(own_daemon: Daemon) -> None:
    daemon, name = own_daemon, f"said-{os.getpid()}"
    out = daemon.run(TRAIN, "6", "0.1", world=2, name=name, flags=("--note", "data=v2", "--note", "lr=of the launcher", "--durable-every", "0")).done()
    assert len(re.findall(r"replicad: step 0: the metric loss is nan, which is no finite number: durable checkpoints of this step have no such metric", out)) == 2, out
    assert len(re.findall(r"replicad: step 6: the metric scale is tensor\(inf\), which is no finite number", out)) == 2, out
    assert out.count("AGAIN 6") == 2, out
    where, rows = checkpoints(daemon, name)
    assert sorted(rows) == [3, 6], rows
    assert rows[3]["metrics"] == {"accuracy": 0.25, "loss": 3.5, "scale": 1.0}
    assert rows[6]["metrics"] == {"accuracy": 0.25, "loss": 6.5}
    assert rows[3]["loader_epoch"] == 1
    assert rows[6]["loader_epoch"] == 2
    assert rows[3]["pinned"] == rows[6]["pinned"] == ["save"], "the second was on disk when it was asked to be kept"
    shown = json.loads(daemon.verb("ckpt", "show", where, "--json"))["commit"]
    assert shown["notes"] == {"data": "v2", "lr": "0.1", "place": "rank 0"}
    assert shown["provenance"]["torch"] == torch.__version__
    assert shown["provenance"]["data"] == "six@sha256:7"
    assert {"python", "replicad", "program"} <= set(shown["provenance"])
    text = daemon.verb("ckpt", "show", f"{where}@3")
    lines = (
        r"metrics +accuracy=0\.25 loss=3\.5 scale=1",
        r"note +lr = 0\.1",
        r"from +torch = \S+",
        r"loader +epoch 1",
        r"pinned +by save: epoch 1",
        r"generators +rank 0: .*",
        r"loaders +rank 0: .*",
    )
    for line in lines:
        assert re.search(rf"^{line}$", text, re.M), (line, text)
    assert re.search(rf"^{name} +3 .* accuracy=0\.25 loss=3\.5 scale=1 +save ", daemon.verb("ckpt", "ls", where), re.M)

    out = daemon.run(TRAIN, "9", "0.2", world=2, name=name, flags=("--resume", "--note", "data=v3", "--note", "lr=0.1", "--note", "who=ada", "--durable-every", "0")).done()
    differ = re.findall(r"^replicad run: (notes differ .*)$", out, re.M)
    assert differ == ['notes differ from those of step 6, which the job goes on from: data is "v3", and was "v2"; who is "ada", and was not noted'], out
    _, rows = checkpoints(daemon, name)
    assert rows[9]["metrics"] == {"loss": 9.5}, "what another process said of accuracy is its own"


#: A model of one step, which is to be on disk within two seconds, once a write has failed.
WAITS = """
import time
import torch, replicad
from replicad._core.admin import status

torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with replicad.Session(model, optimizer) as session:
    session.resume()
    for step in session.steps(1):
        with session.step():
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    session.save()
    while session.rank.number == 0 and not any(job.get("durable_error") for job in status()["jobs"]):
        time.sleep(0.01)
    try:
        session.save(wait=True, timeout=2.0)
    except replicad.Error as err:
        print("WHY", type(err).__name__, err, flush=True)
"""


class Alone:
    """As much of a rank as an order needs."""

    fenced = False

    def wait_fence(self, seconds: float) -> None:
        raise AssertionError("it waits for a write that nobody makes")


def test_no_save_once_another_fleet_owns_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "another fleet owns the run: c has claimed epoch 4"
    job = {"id": str(UUID(int=1)), "name": "lm", "phase": "open", "durable": {"step": 3}, "durable_ended": True, "durable_error": why}
    monkeypatch.setattr(admin, "status", lambda: {"jobs": [job]})
    monkeypatch.setattr(admin, "save", lambda *_: None)
    with pytest.raises(replicad.Refused, match=f"step 4 is not on disk, and nothing more is written: {why}"):
        saving._order(cast("Rank", Alone()), UUID(int=1), 4, "", True, None)


def test_nowhere_to_save(own_daemon: Daemon) -> None:
    durable = own_daemon.dir / "replicad-dev" / "durable"
    durable.rename(durable.with_name("elsewhere"))
    out = own_daemon.run(WAITS, world=2).done()
    assert re.search(r"^WHY Timeout step 1 is not on disk yet: .*durable", out, re.M), out
    assert re.search(r"^WHY Timeout rank 0 could not have step 1 saved: Timeout: step 1 is not on disk yet: .*durable", out, re.M), out


def test_said_on_several_nodes() -> None:
    """Each node speaks for its ranks, whichever node writes: both ranks are of one group, so that one of them writes its part, and each its own private one."""
    name = f"nodes-{os.getpid()}"
    with cluster("abc") as nodes:
        jobs = [
            nodes[node].run(TRAIN, "3", "0.1", world=2, name=name, flags=("--ranks", rank, "--durable-every", "0", "--note", f"of_{node}=yes"))
            for node, rank in (("a", "1"), ("b", "0"))
        ]
        outs = [job.done() for job in jobs]
        assert all("AGAIN 3" in out for out in outs), outs
        where = nodes["c"].dir.parent / "durable" / name
        shown = json.loads(nodes["c"].verb("ckpt", "show", str(where), "--json"))["commit"]
    assert shown["notes"] == {"lr": "0.1", "place": "rank 0", "of_a": "yes", "of_b": "yes"}
    assert shown["metrics"] == {"accuracy": 0.25, "loss": 3.5, "scale": 1.0}


def test_what_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    said = Remarks()
    for values, want in (
        ({"x" * 65: 1}, "the name has 65 bytes, and 1 to 64 fit"),
        ({"long": "é" * 129}, "the text 'é+'... has 258 bytes, and 256 fit"),
        ({f"n{i}": "" for i in range(MOST + 1)}, "note 'n64': there are 64 already, and 64 fit"),
    ):
        with pytest.raises(replicad.Invalid, match=want):
            said.note("note", values)
    with pytest.raises(replicad.Invalid, match="the name has 65 bytes"):
        said.metric(3, {"good": 1.0, "x" * 65: 1.0})
    assert not any(said._of.values()), "of what is refused nothing is taken"
    for step, value in enumerate((float("inf"), "low", None, float("nan"))):
        said.metric(step, {"good": 1.0, "loss": value, f"of {step}": value})
        assert math.isnan(said._of[native.METRIC][b"loss"].value)
        assert said._of[native.METRIC][b"good"].value == 1.0
    warned = [r.getMessage() for r in caplog.records]
    names = ["loss is inf", "of 0 is inf", "of 1 is 'low'", "of 2 is None", "of 3 is nan"]
    assert [re.search(r"the metric (.*), which is no finite number", w)[1] for w in warned] == names, warned  # type: ignore[index]
    assert warned[0].startswith("replicad: step 0: ")
    said._of[native.METRIC].clear()
    said.metric(3, {"loss": torch.tensor(0.5)})
    said.metric(4, {"loss": 0.25})
    said.back(3)
    assert not said._of[native.METRIC], "a number of a step that is gone"
    said.epochs(3, {"train": 1})
    said.epochs(4, {"train": 1})
    assert said._of[native.LOADER_EPOCH][b"train"].step == 3, "an epoch is said where it begins"


def test_alone() -> None:
    model = torch.nn.Linear(2, 2)
    with replicad.Session(model, torch.optim.SGD(model.parameters(), 0.1), enabled=False) as session:
        session.note(lr=0.1)
        session.resume()
        session.metric(loss=float("nan"))
        assert session.save(wait=True, keep="epoch 1") == 0
