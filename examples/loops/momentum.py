"""A momentum encoder as in MoCo: the teacher follows the student in every step, and a queue holds its last answers."""

import copy

import torch

import replicad
from replicad.data import Loader
from replicad.parallel import ddp
from replicad.store import destroy_process_group, init_process_group

STEPS = 30
normalize = torch.nn.functional.normalize


class Contrast(torch.nn.Module):
    """A student, its teacher, and the queue, which are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.student = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        self.teacher = copy.deepcopy(self.student)
        self.register_buffer("queue", normalize(torch.randn(32, 8), dim=1))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        q = normalize(self.student(a), dim=1)
        with torch.no_grad():
            k = normalize(self.teacher(b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], 1) / 0.2
        at = int(self.place)
        self.queue[at : at + len(k)] = k
        self.place[0] = (at + len(k)) % len(self.queue)
        return torch.nn.functional.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))

    @torch.no_grad()
    def follow(self) -> None:
        for p, t in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
            t.lerp_(p, 0.1)


torch.manual_seed(1)
net = Contrast()
optimizer = torch.optim.SGD(net.student.parameters(), lr=0.1, momentum=0.9)
loader = Loader(torch.utils.data.TensorDataset(torch.randn(128, 8)), 4, seed=1)

session = replicad.Session(net, optimizer, data=loader)  # the teacher asks for a gradient here: it is copied at every step
net.teacher.requires_grad_(False)
session.resume()
init_process_group(session)
parallel, batches = ddp(net), loader.endless()
for step in session.steps(STEPS):
    (x,) = next(batches)
    loss = parallel(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    optimizer.zero_grad()
    loss.backward()
    with session.step():
        optimizer.step()
        net.follow()
print(f"step {session.at} loss {loss.item():.4f}, noticed {session.noticed}", flush=True)
session.leave()
session.close()
destroy_process_group()
