"""Actors of Ray that train one model, and are made again where one is lost. Each connects by itself: there is no launcher."""

from __future__ import annotations

import time

import ray
import torch
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import replicad
from replicad.data import Loader
from replicad.parallel import ddp
from replicad.store import init_process_group

WORLD, STEPS = 2, 100


@ray.remote(max_restarts=-1, max_task_retries=-1)  # Ray makes an actor that is lost again, and calls its method again
class Trainer:
    """A rank of the job. Those that are not lost stay in their processes."""

    def __init__(self, rank: int) -> None:
        connection = replicad.connect(job="ray", rank=rank, dev=True)  # first: what follows asks which rank it is
        torch.manual_seed(1)
        samples = torch.utils.data.TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.loader = Loader(samples, 8, seed=1)
        self.session = replicad.Session(self.model, self.optimizer, data=self.loader, connection=connection)

    def train(self) -> float:
        """Trains to the end, and returns the last loss."""
        return replicad.inprocess.wrap(self.session)(self.block)()

    def block(self, call: object) -> float:
        """Runs again after each loss."""
        self.session.resume()
        init_process_group(self.session)
        parallel, batches = ddp(self.model), self.loader.endless()
        for step in self.session.steps(STEPS):
            x, y = next(batches)
            loss = torch.nn.functional.cross_entropy(parallel(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            with self.session.step():
                self.optimizer.step()
            if step % 10 == 0:
                print(f"rank {self.session.rank.number} step {step} loss {loss.item():.4f}", flush=True)
            time.sleep(0.05)  # a step of a real model takes longer
        self.session.leave()
        return loss.item()


ray.init(num_cpus=WORLD, include_dashboard=False)
group = placement_group([{"CPU": 1}] * WORLD)  # a bundle for each rank: the world is their number
places = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank) for rank in range(WORLD)]
trainers = [Trainer.options(scheduling_strategy=place).remote(rank) for rank, place in enumerate(places)]
print("losses", ray.get([trainer.train.remote() for trainer in trainers]))
