"""How large is the learning rate of a step?"""

import math

from zerobubble.train.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the rate for step ``step`` of ``config.run.steps``, counted from 0.

    It rises linearly to ``lr``, reached at step ``warmup_steps``, then falls along half a cosine to
    ``lr * min_lr_share`` at the last step. A run shorter than the warm-up only rises.

    >>> from zerobubble.train.config import OptimizerConfig, RunConfig
    >>> config = TrainConfig(
    ...     run=RunConfig(steps=7), optimizer=OptimizerConfig(lr=1.0, warmup_steps=2)
    ... )
    >>> [round(learning_rate(step, config), 3) for step in range(7)]
    [0.333, 0.667, 1.0, 0.868, 0.55, 0.232, 0.1]
    """
    settings = config.optimizer
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / (settings.warmup_steps + 1)
    num_decay_steps = max(1, config.run.steps - 1 - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / num_decay_steps)
    share = settings.min_lr_share
    return settings.lr * (share + (1 - share) * (1 + math.cos(math.pi * progress)) / 2)
