"""A long evaluation, which the step names: a fault in it costs the evaluation, and not the step."""

import torch

import replicad

STEPS, EVERY = 30, 5
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


@torch.no_grad()
def evaluate() -> None:
    """Draws samples, and leaves the dropout on."""
    model[0].eval()
    loss = torch.stack([(model(torch.randn(8, 8)) - 1).pow(2).mean() for _ in range(4)]).mean()
    model.train()
    print(f"after step {session.at} loss {loss:.4f}", flush=True)


with replicad.Session(model, optimizer) as session:
    session.resume()
    if "evaluate" in session.due:  # interrupted, or not begun
        evaluate()
        session.done("evaluate")
    for step in session.steps(STEPS):
        loss = (model(torch.randn(8, 8)) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        with session.step():
            optimizer.step()
            if step % EVERY == 0:
                session.follow("evaluate")
        if "evaluate" in session.due:
            with session.pause(most=600):
                evaluate()
            session.done("evaluate")
    print(f"step {session.at} loss {loss.item():.4f}, noticed {session.noticed}", flush=True)
