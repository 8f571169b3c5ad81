"""Each refusal leads on: what its text says to do instead is done, and then the program trains."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest

pytest.importorskip("torch")

from conftest import Daemon


@dataclass(frozen=True)
class Row:
    """A program that is refused (what is changed in the base), words of the text, and what the text says to change."""

    refused: dict[str, str]
    words: str
    remedy: dict[str, str]
    late: bool = False  #: refused at a step, which ends the job


#: What the programs are made of; a row changes some of it.
BASE = {
    "before": "",
    "model": "nn.Linear(4, 2)",
    "optimizer": "torch.optim.AdamW(model.parameters(), lr=0.01)",
    "kept": "",  # further arguments of the session
    "given": "optimizer",
    "between": "",
    "body": "optimizer.step()",
    "after": "",
}

SAM = """
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups
    @torch.no_grad()
    def climb(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.detach().clone()
            p.add_(p.grad, alpha=self.param_groups[0]["rho"])
        self.zero_grad()
    @torch.no_grad()
    def descend(self):
        for p in self.param_groups[0]["params"]:
            PUT
        self.base.step()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.climb(); closure(); self.descend()
"""
IN_THE_BLOCK = "optimizer.climb(); model(x).square().mean().backward(); optimizer.descend()"
SAMS = {"before": SAM.replace("PUT", 'p.copy_(self.state[p]["old"])'), "optimizer": "SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)", "body": IN_THE_BLOCK}
SWAPPED = SAMS | {"before": SAM.replace("PUT", 'p.data = self.state[p]["old"]'), "given": "optimizer.base"}

QAT = {
    "before": "import warnings; warnings.simplefilter('ignore')\nfrom torch.ao import quantization as tq",
    "model": "tq.prepare_qat(with_config(nn.Sequential(tq.QuantStub(), nn.Linear(4, 2))))",
}
QAT["before"] += "\ndef with_config(m):\n    m.train(); m.qconfig = tq.get_default_qat_qconfig('x86'); return m"
FORWARD = {"between": "model(torch.ones(2, 4))"}

SOAP = """
class Soap(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, dict(lr=0.01))
        self.inplace = False
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            s = self.state[p]
            if not s:
                s.update(step=0, Q=torch.eye(p.shape[0]))
            s["step"] += 1
            if s["step"] % 10 == 0:
                new = s["Q"] * 0.5
                CHANGE
            p.sub_((s["Q"] @ p.grad.reshape(p.shape[0], -1)).reshape(p.shape), alpha=0.01)
"""
SOAPS = {"before": SOAP.replace("CHANGE", 's["Q"] = new'), "optimizer": "Soap(model.parameters())"}
WARM = "model(torch.ones(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()"

ROWS = {
    "sam": Row(
        SAMS, r"SAM steps the SGD in its \.base.*give the inner one alone \(optimizer=outer\.base\), and have all that the outer one does inside", {"given": "optimizer.base"}
    ),
    "sam, both": Row(SAMS | {"given": "[optimizer, optimizer.base]"}, r"can't be made by a step .*give the inner one alone \(optimizer=outer\.base\)", {"given": "optimizer.base"}),
    "sam, by .data, copied": Row(SWAPPED, r"has moved to other memory.*p\.copy_\(old\) for p\.data = old", {"before": str(SAMS["before"])}, late=True),
    "sam, by .data, staged": Row(SWAPPED, r"has moved to other memory.*staging=True", {"kept": ", staging=True"}, late=True),
    "qat": Row(QAT, r"weight_fake_quant.*run one forward before, where the first one makes it grow", FORWARD, late=True),
    "qat, staged": Row(QAT | {"kept": ", staging=True"}, r"weight_fake_quant.*run one forward before, where the first one makes it grow", FORWARD, late=True),
    "soap": Row(SOAPS, r"Soap: its step replaces tensors of its state \(Q; seen at step 10", {"before": SOAP.replace("CHANGE", 's["Q"].copy_(new)')}),
    "soap, after a step": Row(SOAPS | {"between": WARM}, r"its step replaces tensors of its state \(Q; .*or use an optimizer that does", {"optimizer": BASE["optimizer"]}),
    "outside": Row(
        {"body": "pass", "after": "optimizer.step()"}, r"AdamW\.step\(\) outside of .*Call step\(\) of every registered optimizer inside", {"body": "optimizer.step()", "after": ""}
    ),
    "lbfgs": Row(
        {"optimizer": "torch.optim.LBFGS(model.parameters())", "body": "optimizer.step(lambda: 0.0)"},
        "LBFGS.*use another optimizer",
        {"optimizer": BASE["optimizer"], "body": BASE["body"]},
    ),
    "dampening": Row({"optimizer": "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1)"}, "take a step before the session is made", {"between": WARM}),
    "a list in extra": Row({"kept": ", extra=[[]]"}, r"want a dict of objects by name.*extra=\{'name': object\}", {"kept": ", extra={'losses': Losses()}"}),
    "no state_dict": Row(
        {"before": "loader = replicad.data.Loader([1, 2], 1); batches = loader.endless()", "kept": ", data=[1, 2]", "after": "next(batches)"},
        "use replicad.data.Loader",
        {"kept": ", data=loader"},
    ),
    "one name twice": Row(
        {"kept": ", extra={'scheduler': Losses()}, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)"},
        r"scheduler is the name of two objects, of scheduler= and of extra=: give one of them another name \(extra=\{'name': object\}\)",
        {"kept": ", extra={'losses': Losses()}, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)"},
    ),
    "one name of tensors twice": Row(
        {"given": "optimizer", "model": "{'a': nn.Sequential(nn.Linear(4, 2)), 'a.0': nn.Linear(4, 2)}"},
        r"model\.a\.0\.weight, model\.a\.0\.bias is the name of two tensors.*give the objects names without dots, or others",
        {"model": "{'a': nn.Sequential(nn.Linear(4, 2)), 'b': nn.Linear(4, 2)}"},
    ),
}

PROGRAM = """
import json, os, sys, torch, replicad, replicad.data
from torch import nn

class Losses:
    def state_dict(self): return {}
    def load_state_dict(self, s): pass

def train(parts):
    scope = globals() | {"x": torch.ones(2, 4)}
    exec(parts["before"], scope)
    torch.manual_seed(1)
    models = scope["models"] = eval(parts["model"], scope)
    scope["model"] = models["a"] if isinstance(models, dict) else models
    scope["optimizer"] = eval(parts["optimizer"], scope)
    exec(parts["between"], scope)
    with eval(f"replicad.Session(models, {parts['given']}{parts['kept']})", scope) as session:
        for step in range(session.resume() + 1, 16):
            scope["model"](scope["x"]).square().mean().backward()
            with session.step():
                exec(parts["body"], scope)
            exec(parts["after"], scope)
            scope["model"].zero_grad()
        return dict(session.noticed)

def tried(parts):
    try:
        print("TRAINED", json.dumps(train(parts)), flush=True)
        return 0
    except replicad.Error as err:
        print("REFUSED", json.dumps(f"{type(err).__name__}: {err}"), flush=True)
        return 78  # a new process would only end the same way

for parts in map(json.loads, sys.argv[1:-1]):
    if os.fork() == 0:  # refused when the session is made, before the job hears of it
        tried(parts)
        os._exit(0)
    os.wait()
os._exit(tried(json.loads(sys.argv[-1])))
"""


@pytest.mark.parametrize("name", ROWS)
def test_what_a_refusal_says_leads_on(name: str, daemon: Daemon) -> None:
    row = ROWS[name]
    variants = [json.dumps(BASE | row.refused), json.dumps(BASE | row.refused | row.remedy)]
    jobs = [daemon.run(PROGRAM, *each) for each in ([[v] for v in variants] if row.late else [variants])]
    for job in jobs:
        job.wait()
    out = "\n".join(str(job.out) for job in jobs)
    words, trained = (re.findall(rf"^{what} (.*)$", out, re.M) for what in ("REFUSED", "TRAINED"))
    assert re.search(row.words, json.loads(words[0])), words
    assert (len(words), trained) == (1, ["{}"]), out
