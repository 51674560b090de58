"""Which small models are profiled in tests?"""

import time
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from zerobubble.runtime.layered import LayeredModel
from zerobubble.train.config import ModelConfig
from zerobubble.train.model import reference_model

CONFIG = ModelConfig(layers=3, dim=32, heads=2, sequence=16, vocabulary=300)
REFERENCE = reference_model(CONFIG)
QUICK = {"seconds": 0.02, "least_rounds": 1}


def vectors(num_samples, width=4):
    return torch.ones(num_samples, width), torch.ones(num_samples, width)


def model_of(*layers, sample=vectors, kinds=None):
    names = tuple(f"layer {i}" for i in range(len(layers)))
    return LayeredModel("mine", layers, names, F.mse_loss, sample, kinds=kinds)


def counting(model):
    """Give the same model with builders that note their numbers, and the list of them."""
    built = []

    def noting(number, layer):
        def build():
            built.append(number)
            return layer()

        return build

    layers = [noting(number, layer) for number, layer in enumerate(model.layers)]
    return replace(model, layers=layers), built


class Sleeping(nn.Module):
    """Sleeps in forward."""

    def __init__(self, ms):
        super().__init__()
        self.ms = ms
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        time.sleep(self.ms / 1e3)
        return x * self.weight


class Pair(nn.Module):
    """Makes two tensors, one without a gradient, and a number of one."""

    def forward(self, x):
        return x * 2, {"mask": torch.ones_like(x, dtype=torch.bool), "scale": 3}


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, value):
        x, others = value
        return self.linear(x * others["mask"] * others["scale"])


class Returning(nn.Module):
    """Returns what cannot travel."""

    def forward(self, x):
        return {"set": {1, 2}, "x": x}


class NeedingValues(nn.Module):
    """Looks at its input."""

    def forward(self, x):
        return x * 2 if x.sum().item() > 0 else x


class Nothing(nn.Module):
    """Forgets to return its output."""

    def forward(self, x):
        pass


class Empty(nn.Module):
    """Returns no tensor."""

    def forward(self, x):
        return ()
