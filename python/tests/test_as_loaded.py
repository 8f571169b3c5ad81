"""Between resume() and the first step a program puts other values into what was loaded: refused by name, and nothing is said where the bytes are the same."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

PROGRAM = """
import contextlib, copy, json, logging, os, sys
import torch, torch.distributed as dist, replicad
from replicad import Mismatch

STAGED = sys.argv[1] == "staged"
torch.set_num_threads(1)
torch.manual_seed(1)
said = []
class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("replicad").addHandler(Said())


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.out = torch.nn.Linear(4, 6, bias=False), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 4, bias=False)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.body.weight
        self.turned = torch.nn.Parameter(torch.randn(6, 4).t())  # lies in another order of dimensions
        self.table = torch.nn.Embedding(3, 4, max_norm=0.1)
        self.still = torch.nn.Linear(4, 6).requires_grad_(False)
        self.register_buffer("heat", torch.ones(1))
    def forward(self, x):
        return self.heat * self.out(self.norm(self.body(x) + self.still(x))) + (self.head(x) + self.norm(x @ self.turned)).sum() + self.table(torch.tensor([1])).sum()


model = Tied()
pretrained = {k: torch.ones_like(v) for k, v in model.state_dict().items()}
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1) if STAGED else 0.1, foreach=False)
session = replicad.Session(model, optimizer, staging=STAGED)


def trains(through=None):
    loss = (model if through is None else through)(torch.ones(3, 4) + torch.arange(3)[:, None]).square().sum()
    optimizer.zero_grad()
    loss.backward()
    with session.step():
        optimizer.step()


def goes_back():
    "Breaks a step off, and loads the one before."
    with contextlib.suppress(RuntimeError), session.step():
        optimizer.step()
        raise RuntimeError("broken off")
    return session.resume()


def load():
    model.load_state_dict(pretrained)
def fresh():
    for p in model.parameters():
        torch.nn.init.normal_(p)
def by_data():
    model.out.weight.data.normal_()
def turned():
    with torch.no_grad():
        model.turned[3, 5] += 1
def moments():
    optimizer.state[model.out.weight]["exp_avg"].zero_()
def equal():
    model.load_state_dict(copy.deepcopy(model.state_dict()))
def there_and_back():
    "An evaluation with other weights, as one that is due is done again."
    kept = copy.deepcopy(model.state_dict())
    model.load_state_dict(pretrained)
    model.eval()
    with torch.no_grad():
        model(torch.ones(3, 4))
    model.train()
    model.load_state_dict(kept)
def rate():
    for group in optimizer.param_groups:
        if STAGED:
            group["lr"].fill_(0.1 / (1 + session.at))
        else:
            group["lr"] = 0.1 / (1 + session.at)
def heat():
    model.heat.fill_(1 / (1 + session.at))
def part():
    "Of the model, whose forward the session sees."
    model.norm(torch.ones(3, 6))
def still():
    torch.nn.init.normal_(model.still.weight)
def still_by_data():
    model.still.weight.data.normal_()
def statistics():
    model.norm.reset_running_stats()
def of_others():
    model.norm.load_state_dict(model.norm.state_dict() | {"running_var": torch.ones(6) / 3, "num_batches_tracked": torch.tensor(50000)})
def renormalised():
    model.table(torch.tensor([0, 1, 2]))
def ddp():
    return torch.nn.parallel.DistributedDataParallel(model)
def compiled():
    return torch.compile(model, backend="eager")
def guarded():
    if session.at == 0:
        model.load_state_dict(pretrained)


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
out = {}
session.resume()
if STAGED:
    guarded()
else:
    model.load_state_dict(pretrained)
trains()
out["begins"] = [x for x in said if "changed between" in x]
refused = (load, fresh, by_data, turned, moments, still, still_by_data, statistics, of_others)
for case in (equal, there_and_back, rate, heat, part, renormalised, ddp, *((compiled,) if not STAGED else ()), guarded, *refused):
    goes_back()
    said.clear()
    through = case()
    try:
        trains(through)
        out[case.__name__] = [x for x in said if "changed between" in x]
    except Mismatch as err:
        out[case.__name__] = str(err)
# Without a forward of the model: the step looks.
goes_back()
load()
try:
    with session.step():
        optimizer.step()
except Mismatch as err:
    out["at the step"] = str(err)
# What a trainer's hooks have changed is put back.
goes_back()
kept = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
fresh()
moments()
model.norm.running_mean.add_(1)
still()
out["put back"] = sorted(session.parts.loaded.stands(True))
now = [model.state_dict(), optimizer.state_dict()]
out["as it was"] = [repr(kept) == repr(now)]
trains()
session.leave()
session.close()
print("OUT", json.dumps(out))
"""


@pytest.mark.parametrize("how", ["in place", "staged"])
def test_what_was_loaded_is_what_training_goes_on_with(run: Callable[..., str], how: str) -> None:
    text = run(PROGRAM, how)
    out = json.loads(next(x for x in text.splitlines() if x.startswith("OUT ")).removeprefix("OUT "))
    begins, back, same = out.pop("begins"), out.pop("put back"), out.pop("as it was")
    assert same == [True] and "model.norm.running_mean" in back and {"model.turned", "model.still.weight"} <= set(back) and any("exp_avg" in x for x in back), back
    if how == "staged":
        assert begins == [], "what stands under `if session.at == 0:` is as it should be"
    else:
        assert len(begins) == 1 and "model.out.weight" in begins[0] and "`if session.at == 0:`" in begins[0]
    assert text.count("job grows at step 1: the same regions") == 1, "what is frozen is kept as it was put in place"
    quiet = {k: v for k, v in out.items() if isinstance(v, list)}
    refused = {k: v for k, v in out.items() if isinstance(v, str)}
    assert not any(quiet.values()), quiet
    assert sorted(quiet) == sorted(["equal", "there_and_back", "rate", "heat", "part", "renormalised", "ddp", "guarded", *(["compiled"] if how == "in place" else [])])
    assert sorted(refused) == sorted(["load", "fresh", "by_data", "turned", "moments", "still", "still_by_data", "statistics", "of_others", "at the step"])
    for text in refused.values():
        assert "`if session.at == 0:`" in text
    for case, names in {
        "load": ["model.body.weight"],
        "by_data": ["model.out.weight"],
        "turned": ["model.turned"],
        "moments": ["exp_avg"],
        "still": ["model.still.weight"],
        "still_by_data": ["model.still.weight"],
        "statistics": ["model.norm.running_mean", "model.norm.running_var"],
        "of_others": ["model.norm.running_var"],
    }.items():
        assert all(n in refused[case] for n in names), refused[case]
    assert "model.body.weight" not in refused["by_data"] and "before the first forward" not in refused["at the step"] and "first step" in refused["at the step"]
