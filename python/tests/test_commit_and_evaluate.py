"""An evaluation behind session.commit() in an iteration of session.steps() is not done again where it is interrupted: it is named, unless follow() has named it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

PROGRAM = """
import torch
import replicad

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def evaluates(swaps=False):
    model.eval()
    with torch.no_grad():
        weight = model[0].weight.clone()
        if swaps:
            model[0].weight.zero_()
        model(torch.ones(1, 4))
        if swaps:
            model[0].weight.copy_(weight)
    model.train()

def told(what):
    print(what, {k: [w for w in ("is never done", "put back", "made meanwhile") if w in v] for k, v in session.noticed.items()}, flush=True)

with replicad.Session(model, optimizer) as session:
    session.resume()
    for step in session.steps(12):
        if step == 2:
            evaluates()  # as a teacher, at the loop's top
        model(torch.randn(2, 4)).sum().backward()
        with session.step():
            optimizer.step()
            if step in (3, 6, 10):
                session.follow("evaluate")
        optimizer.zero_grad()
        if step == 1:
            session.commit()
        elif step == 3:
            session.commit()
            session.commit()
            evaluates(swaps=True)
            session.done("evaluate")
        elif step == 4:
            evaluates(swaps=True)  # the step is copied behind it
        elif step == 5:
            told("QUIET")
            session.commit()
            evaluates()
        elif step == 6:
            told("EVALUATED")
            evaluates()
            session.done("evaluate")
            session.commit()
        elif step == 7:
            told("FOLLOWED")
            session.commit()
            evaluates(swaps=True)
        elif step == 9:
            told("SWAPPED")
        elif step == 10:
            with torch.no_grad():
                model[0].bias.add_(0)
            session.commit()
            session.done("evaluate")
    told("BEFORE")
"""


def test_what_is_named(run: Callable[..., str]) -> None:
    text = run(PROGRAM)
    evaluation, weight = "'evaluation': ['is never done']", "'model.0.weight': ['put back']"
    assert "QUIET {}" in text
    for what in ("EVALUATED", "FOLLOWED"):
        assert f"{what} {{{evaluation}}}" in text
    assert f"SWAPPED {{{evaluation}, {weight}}}" in text
    assert f"BEFORE {{{evaluation}, {weight}, 'model.0.bias': ['made meanwhile']}}" in text
