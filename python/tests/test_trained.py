"""Adapters on a frozen base: what is copied once and what at every step, and what is refused because no copy would have it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

import peft
import torch
from torch import nn

import replicad
from conftest import PATIENCE, ROOT, Daemon
from replicad.testing import check_resume

#: It takes longer to import than torch.
PEFT = ("import peft",)

ONCE = """
import hashlib, json, os, signal, torch
from torch import nn
from peft import LoraConfig, get_peft_model
import replicad

# Each process makes weights of its own: what the second one ends up with is what it was given.
torch.manual_seed(os.getpid())
base = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
model = get_peft_model(base, LoraConfig(r=2, lora_dropout=0.1, target_modules=["0", "2"]))
optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)


def size(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:16]


with replicad.Session(model=model, optimizer=optimizer) as session:
    at, base, adapters = session.resume(), session.frozen(), session.trained()
    print("AT", json.dumps({"step": int(at), "source": at.source, "base": digest(base.values()), "adapters": digest(adapters.values())}), flush=True)
    for step in range(at + 1, 21):
        model(torch.randn(4, 256)).square().mean().backward()
        with session.step():
            optimizer.step()
        optimizer.zero_grad()
        session.commit()  # the cadence may skip a step, and nobody makes another before this one is committed
        if at.source == "fresh" and step == 10:
            next(iter(base.values())).detach().zero_()  # nobody may: it shows that this area is not written again
        if at.source == "fresh" and step == 12:
            print("KILLED", json.dumps({"adapters": digest(adapters.values())}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    state, stats = size(v for s in optimizer.state.values() for v in s.values()), session.stats()
    sizes = {"trained": size(adapters.values()), "frozen": size(base.values()), "state": state, "capture": stats.capture_bytes / stats.captures}
    print("END", json.dumps({"names": sorted(adapters), **sizes}))
"""


def test_base_weights_are_held_once(own_daemon: Daemon) -> None:
    out = own_daemon.run(ONCE, imports=PEFT).done()

    def said(word: str) -> list[dict[str, Any]]:
        return [json.loads(line.removeprefix(word)) for line in out.splitlines() if line.startswith(word + " ")]

    (first, second), (killed,), (end,) = said("AT"), said("KILLED"), said("END")
    assert (first["source"], second["source"], second["step"]) == ("fresh", "own-ram", 12)
    assert second["base"] == first["base"]
    assert second["adapters"] == killed["adapters"] != first["adapters"]
    assert end["names"] == [f"base_model.model.{i}.lora_{x}.default.weight" for i in "02" for x in "AB"]
    # What is no tensor takes 16 KiB, and regions begin at multiples of 64 bytes.
    assert end["trained"] + end["state"] < end["capture"] < end["trained"] + end["state"] + (17 << 10) < end["frozen"] / 20


REFUSED = """
import traceback, torch
from torch import nn
from peft import LoraConfig, get_peft_model
import replicad

torch.manual_seed(1)
model = get_peft_model(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)), LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"]))
adapter, base = (dict(model.named_parameters())[f"base_model.model.0.{x}.weight"] for x in ("lora_A.default", "base_layer"))
norm, x = model.base_model.model[1], torch.randn(4, 4)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=torch.tensor(1e-3))
session = replicad.Session(model=model, optimizer=optimizer)
session.resume()


def step():
    model(x).square().mean().backward()
    with session.step():
        optimizer.step()
    optimizer.zero_grad()


def refused(text, undo):
    at = session.at
    try:
        step()
    except replicad.Mismatch as err:
        assert text in str(err), err
        print("REFUSED", err, flush=True)
    else:
        raise AssertionError(f"not refused: {text}")
    undo()
    assert session.resume() <= at  # the step was not kept
    step()


def main():
    step()
    kept, rate = optimizer.state, optimizer.param_groups[0]["lr"]
    optimizer.load_state_dict(optimizer.state_dict())
    refused("optim.state was replaced", lambda: (setattr(optimizer, "state", kept), optimizer.param_groups[0].update(lr=rate)))
    average = optimizer.state[adapter]["exp_avg"]
    optimizer.state[adapter]["exp_avg"] = average.clone()
    refused("optim.model.base_model.model.0.lora_A.default.weight.exp_avg was replaced", lambda: optimizer.state[adapter].update(exp_avg=average))
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
    refused("optim.groups[0].lr was replaced", lambda: optimizer.param_groups[0].update(lr=rate))
    mean = norm.running_mean
    norm.running_mean = mean.clone()
    refused("model.base_model.model.1.running_mean was replaced", lambda: setattr(norm, "running_mean", mean))
    where = adapter.data
    adapter.data = where.clone()
    refused("model.base_model.model.0.lora_A.default.weight has moved", lambda: setattr(adapter, "data", where))

    model.merge_adapter()
    refused("model.base_model.model.0 is merged with its adapters", model.unmerge_adapter)
    assert "rounding" in session.noticed["model.base_model.model.0"]
    with model.disable_adapter():  # as a reference model, in every step
        model(x)
    step()
    assert list(session.noticed) == ["model.base_model.model.0"], session.noticed
    adapter.requires_grad_(False)  # may be, but belongs into a step
    step()
    assert "do it in `with session.step()`" in session.noticed["trained"]
    print("DONE", flush=True)


try:
    main()
except Exception:
    traceback.print_exc()
    session.resume()  # and the job ends: it would be started again for ever
session.leave()
session.close()
"""


def test_what_no_copy_would_have_is_refused_by_name(daemon: Daemon) -> None:
    out = daemon.run(REFUSED, imports=PEFT).done()
    assert out.count("REFUSED") == 6, out
    assert "DONE" in out


def train(last: int) -> Iterator[dict[str, Any]]:
    """Two adapters, the first trained for five steps, then the second, with a norm that is trained whole."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    base = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, lora_dropout=0.2, target_modules=["0"], modules_to_save=["1"]), adapter_name="a")
    model.add_adapter("b", peft.LoraConfig(r=3, lora_dropout=0.1, target_modules=["2"], modules_to_save=["1"]))
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name or "modules_to_save" in name)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.1)
    with replicad.Session(model=model, optimizer=optimizer) as session:
        model.set_adapter("a")
        for step in range(session.resume() + 1, last + 1):
            loss = (model(torch.randn(4, 4)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with session.step():
                optimizer.step()
                if step == 5:
                    model.set_adapter("b")
            yield {"loss": loss, "active": model.active_adapters, "asks": [n for n, p in model.named_parameters() if p.requires_grad]}


def test_the_active_adapter_comes_back(forks: Callable[..., None]) -> None:
    """A process that is started again has the first adapter active until the state is loaded."""
    forks(*PEFT)
    done = check_resume(train, steps=8, more=4, program=str(ROOT / "bin" / "replicad"), timeout=PATIENCE)
    assert (done.resumed_at, done.source) == (8, "own-ram")
