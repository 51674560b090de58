"""Train a small model over four ranks: torchrun --nproc-per-node 4 examples/train.py."""

import torch
from torch import nn

import zerobubble as zb

# Layers of the whole model: modules, or callables that build one. Each rank builds only its own.
layers = [lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(7)]
layers.append(lambda: nn.Linear(64, 10))

schedule = zb.build("zb-h1", num_ranks=4, num_microbatches=8)
pipe = zb.Pipeline(layers, schedule, nn.functional.cross_entropy)
opt = pipe.optimizer(torch.optim.AdamW, lr=3e-3, max_grad_norm=1.0)

generator = torch.Generator().manual_seed(0)
for _ in range(100):
    x = torch.randn(32, 64, generator=generator)
    y = x[:, :10].argmax(dim=1)
    loss = pipe.step(x, y)  # forward and backward of 8 microbatches over 4 ranks
    opt.step()  # norm, clipping and inf/nan check over all ranks
if pipe.rank == 0:
    print(f"loss {loss.item():.3f}")
