"""An average of the weights, swapped in for an evaluation. A fault in it costs neither the step nor the evaluation."""

import torch

import replicad

STEPS, EVERY = 30, 5


class Average:
    """Follows the weights in every step. What it puts aside while it is swapped in is in no copy."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.live = list(model.parameters())
        self.mean = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def update(self) -> None:
        for m, p in zip(self.mean, self.live, strict=True):
            m.lerp_(p, 0.1)

    @torch.no_grad()
    def swap(self) -> None:
        for m, p in zip(self.mean, self.live, strict=True):
            aside = p.clone()
            p.copy_(m)
            m.copy_(aside)

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        for m, kept in zip(self.mean, state["mean"], strict=True):
            m.copy_(kept)


torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
average = Average(model)


@torch.no_grad()
def evaluate() -> None:
    session.commit()  # copied whole before weights are others
    average.swap()
    model.eval()
    loss = (model(torch.randn(32, 8)) - 1).pow(2).mean()
    model.train()
    average.swap()  # back, bit for bit
    print(f"after step {session.at} loss {loss:.4f}", flush=True)
    session.done("evaluate")


with replicad.Session(model, optimizer, extra={"average": average}) as session:
    session.resume()
    if "evaluate" in session.due:  # interrupted, or not begun
        evaluate()
    for step in session.steps(STEPS):
        loss = (model(torch.randn(8, 8)) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        with session.step():
            optimizer.step()
            average.update()
            if step % EVERY == 0:
                session.follow("evaluate")
        if "evaluate" in session.due:
            evaluate()
    print(f"step {session.at} loss {loss.item():.4f}, noticed {session.noticed}", flush=True)
