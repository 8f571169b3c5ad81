"""A GAN with spectral norm: the discriminator's update lies before the generator's forward (Lightning#17958, pytorch#175024, #62293).

VAR=one: one block has both updates; VAR=two: a block for each. SHARED=1: all buffers are declared equal, as a warning once advised.
"""

import os

import torch
from fault import end, fault, steps

import replicad
from replicad.data import Loader

ONE = os.environ.get("VAR", "one") == "one"
torch.manual_seed(1)
norm, softplus = torch.nn.utils.parametrizations.spectral_norm, torch.nn.functional.softplus
generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
critic = torch.nn.Sequential(norm(torch.nn.Linear(8, 16)), torch.nn.LeakyReLU(0.2), norm(torch.nn.Linear(16, 1)))
generators, critics = (torch.optim.Adam(m.parameters(), lr=0.002, betas=(0.5, 0.999)) for m in (generator, critic))
loader = Loader(torch.utils.data.TensorDataset(torch.randn(256, 8)), 8, seed=1)
shared = {"shared_buffers": lambda name: True} if os.environ.get("SHARED") else {}


def judge(x: torch.Tensor) -> None:
    """Gradients of the discriminator."""
    critics.zero_grad()
    (softplus(-critic(x)).mean() + softplus(critic(generator(torch.randn(8, 4)).detach())).mean()).backward()


def forge() -> None:
    """Gradients of the generator."""
    generators.zero_grad()
    softplus(-critic(generator(torch.randn(8, 4)))).mean().backward()


with replicad.Session({"generator": generator, "critic": critic}, {"generator": generators, "critic": critics}, data=loader, **shared) as session:
    session.resume()
    batches = loader.endless()
    for step in steps(session, 20 if ONE else 40):
        if ONE:
            judge(*next(batches))
            fault("critic", step)
            with session.step():
                critics.step()
                forge()
                fault("generator", step)
                generators.step()
        elif step % 2:
            judge(*next(batches))
            fault("critic", step)
            with session.step():
                critics.step()
        else:
            forge()
            fault("generator", step)
            with session.step():
                generators.step()
    end(generator=generator, critic=critic, generators=generators, critics=critics)
