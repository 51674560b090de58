"""How many FLOPs do the ops of each stage take, and so how long relative to each other?"""

from collections.abc import Sequence

import numpy as np

from zerobubble.costs import Costs
from zerobubble.ir import Placement
from zerobubble.train.config import ModelConfig


def flop_shares(
    config: ModelConfig, layers_of_stage: Sequence[range], placement: Placement
) -> Costs:
    """Count the matrix-product FLOPs of every stage for one token; transfers count nothing.

    A weight of n elements takes 2n FLOPs in each of F, B and W; attention over T positions takes
    4TD in F, twice that in B and none in W (arXiv 2401.10241, table 1).
    """
    block_weights = 4 * config.dim**2 + 3 * config.dim * config.ffn_dim
    weights = [0, *[block_weights] * config.layers, config.dim * config.vocabulary]
    attention = [0, *[4 * config.sequence * config.dim] * config.layers, 0]
    stages = [slice(numbers.start, numbers.stop) for numbers in layers_of_stage]
    linear = np.array([2.0 * sum(weights[stage]) for stage in stages])
    mixing = np.array([float(sum(attention[stage])) for stage in stages])
    share = Costs.of_ranks(placement)
    return Costs(
        linear + mixing,
        linear + 2 * mixing,
        linear,
        share.transfer,
        share.activation,
        share.activation_kept,
    )
