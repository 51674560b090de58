"""What does every layer of a model cost on a device? Data only: no torch, nothing is measured here.

``zerobubble.profiling`` measures or estimates a profile, ``zerobubble.plan`` makes plans of it.
"""

from zerobubble.profile.data import LayerCosts, Link, Profile
from zerobubble.profile.file import load, save
from zerobubble.profile.stages import StageBytes, stage_bytes, stage_costs

__all__ = [
    "LayerCosts",
    "Link",
    "Profile",
    "StageBytes",
    "load",
    "save",
    "stage_bytes",
    "stage_costs",
]
