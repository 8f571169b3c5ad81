"""A momentum encoder: the teacher asks for no gradient and follows the student in every step; a queue is a buffer (moco#70, dino#179, mmdetection PR #5712, yolov5#310).

VAR=data: the teacher's `p.data` is assigned anew, as in the first MoCo. VAR=asks: the teacher asks for a gradient while the session is made, as the pages say.
"""

import copy
import os

import torch
from fault import end, fault, steps

import replicad
from replicad.data import Loader
from replicad.parallel import ddp
from replicad.store import init_process_group

VAR = os.environ.get("VAR", "")


class Contrast(torch.nn.Module):
    """A student, its teacher, and the teacher's last answers on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.student = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("queue", torch.nn.functional.normalize(torch.randn(32, 8), dim=1))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        q = torch.nn.functional.normalize(self.student(a), dim=1)
        with torch.no_grad():
            k = torch.nn.functional.normalize(self.teacher(b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], 1) / 0.2
        with torch.no_grad():
            every = [torch.empty_like(k) for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather(every, k)
            at, more = int(self.place), sum(map(len, every))
            self.queue[at : at + more] = torch.cat(every)
            self.place[0] = (at + more) % len(self.queue)
        return torch.nn.functional.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


torch.manual_seed(1)
net = Contrast()
optimizer = torch.optim.SGD(net.student.parameters(), lr=0.1, momentum=0.9)
loader = Loader(torch.utils.data.TensorDataset(torch.randn(128, 8)), 4, seed=1)
net.teacher.requires_grad_(VAR == "asks")
session = replicad.Session(net, optimizer, data=loader)
net.teacher.requires_grad_(False)
session.resume()
init_process_group(session)
parallel, batches = ddp(net), loader.endless()
for step in steps(session, 20):
    (x,) = next(batches)
    loss = parallel(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    optimizer.zero_grad()
    loss.backward()
    fault("backward", step)
    with session.step():
        optimizer.step()
        with torch.no_grad():
            for p, t in zip(net.student.parameters(), net.teacher.parameters(), strict=True):
                if VAR == "data":
                    t.data = t.data * 0.9 + p.data * 0.1
                else:
                    t.lerp_(p, 0.1)
end(student=net.student, teacher=net.teacher, queue={"queue": net.queue, "place": net.place}, optimizer=optimizer)
session.leave()
session.close()
