"""A GAN whose two updates are one step: the generator's noise is drawn inside of the block, after the discriminator's update."""

import torch

import replicad
from replicad.data import Loader

STEPS = 30
torch.manual_seed(1)
norm, softplus = torch.nn.utils.parametrizations.spectral_norm, torch.nn.functional.softplus
generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
critic = torch.nn.Sequential(norm(torch.nn.Linear(8, 16)), torch.nn.LeakyReLU(0.2), norm(torch.nn.Linear(16, 1)))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=0.002, betas=(0.5, 0.999))
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=0.002, betas=(0.5, 0.999))
loader = Loader(torch.utils.data.TensorDataset(torch.randn(256, 8)), 8, seed=1)

models = {"generator": generator, "critic": critic}
optimizers = {"generator": generator_optimizer, "critic": critic_optimizer}
with replicad.Session(models, optimizers, data=loader) as session:
    session.resume()
    batches = loader.endless()
    for step in session.steps(STEPS):
        (real,) = next(batches)
        fake = generator(torch.randn(8, 4)).detach()
        critic_optimizer.zero_grad()
        critic_loss = softplus(-critic(real)).mean() + softplus(critic(fake)).mean()
        critic_loss.backward()
        with session.step():  # both updates
            critic_optimizer.step()
            generator_optimizer.zero_grad()
            loss = softplus(-critic(generator(torch.randn(8, 4)))).mean()
            loss.backward()
            generator_optimizer.step()
    print(f"step {session.at} loss {loss.item():.4f} of the critic {critic_loss.item():.4f}, noticed {session.noticed}", flush=True)
