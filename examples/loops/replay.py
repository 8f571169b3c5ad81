"""Q-learning with a replay buffer: an iteration plays in the environment, and learns from what the buffer has. Buffer and environment come back as they were."""

import random
from typing import Any

import torch

import replicad

STEPS, PLAYS, SIZE = 40, 4, 256


class Corridor:
    """An environment: walk to the right end of a corridor whose floor slips."""

    LENGTH = 5

    def __init__(self, seed: int) -> None:
        self.random, self.at, self.episodes = random.Random(seed), 0, 0

    def observe(self) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(self.at), self.LENGTH).float()

    def act(self, action: int) -> tuple[float, bool]:
        move = (-1, 1)[action] if self.random.random() > 0.1 else 0
        self.at = max(0, self.at + move)
        done = self.at == self.LENGTH - 1
        if done:
            self.at, self.episodes = 0, self.episodes + 1
        return float(done), done

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self.random.getstate()
        return {"at": self.at, "episodes": self.episodes, "random": [version, list(words), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["random"]
        self.random.setstate((version, tuple(words), gauss))
        self.at, self.episodes = state["at"], state["episodes"]


class Replay(torch.nn.Module):
    """The last transitions, in buffers of a module, so that the session copies them as it copies BatchNorm's."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(size, 2 * width + 3))  # observation, the next one, action, reward, done
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.width = width

    def add(self, before: torch.Tensor, after: torch.Tensor, *numbers: float) -> None:
        self.seen[int(self.count) % len(self.seen)] = torch.cat([before, after, torch.tensor(numbers)])
        self.count += 1

    def draw(self, count: int) -> tuple[torch.Tensor, ...]:
        rows = self.seen[torch.randint(min(int(self.count), len(self.seen)), (count,))]
        before, after, (action, reward, done) = rows[:, : self.width], rows[:, self.width : -3], rows[:, -3:].T
        return before, after, action.long(), reward, done


torch.manual_seed(1)
env = Corridor(seed=5)
replay = Replay(SIZE, env.LENGTH)
net = torch.nn.Sequential(torch.nn.Linear(env.LENGTH, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

with replicad.Session({"net": net, "replay": replay}, optimizer, extra={"env": env}) as session:
    session.resume()
    for step in session.steps(STEPS):
        for _ in range(PLAYS):
            before = env.observe()
            greedy = torch.rand(()) > 0.3
            with torch.no_grad():
                action = int(net(before).argmax()) if greedy else int(torch.randint(2, ()))
            reward, done = env.act(action)
            replay.add(before, env.observe(), action, reward, done)
        seen, following, actions, rewards, ends = replay.draw(16)
        with torch.no_grad():
            want = rewards + 0.9 * (1 - ends) * net(following).max(1).values
        loss = (net(seen).gather(1, actions[:, None])[:, 0] - want).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        with session.step():
            optimizer.step()
    print(f"step {session.at} loss {loss.item():.4f}, {env.episodes} episodes, {int(replay.count)} moves, noticed {session.noticed}", flush=True)
