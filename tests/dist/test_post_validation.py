"""Does an optimizer that steps before it knows the norm end with the bits of one that waits?"""

import random

import pytest
import torch

from tests.dist.cases import placed
from tests.dist.harness import launch, values
from tests.dist.post_validation import (
    INF,
    NAN,
    TO_CLIP,
    Case,
    Lion,
    compare,
    groups,
    halves,
    idle_in_the_middle,
    linears,
    of_class,
    plain,
    scaled,
    scaled_by_torch,
    sparse,
)
from tests.strategies import random_schedule
from zerobubble import build
from zerobubble.ir import Placement

NUM_STEPS = 60
VALUES = (TO_CLIP, INF, NAN, TO_CLIP)


def in_turn(num_ranks):
    """Spoil every rank in turn, two steps in a row, the first and the last one too."""
    steps = [0, 1, *range(4, NUM_STEPS - 4, 3), NUM_STEPS - 3, NUM_STEPS - 1]
    return {s: (i % num_ranks, VALUES[i // num_ranks % 4]) for i, s in enumerate(steps)}


def reordered(num_microbatches):
    """Place stages on ranks 0, 2, 1."""
    return random_schedule(random.Random(1), Placement((0, 2, 1)), num_microbatches)


LONG = {
    "p1": build("zb-h1", 1, 2),
    "p2-zb-h2": build("zb-h2", 2, 3),
    "p2-zb-v": build("zb-v", 2, 2),
    "p2-1f1b-m1": build("1f1b", 2, 1),
    "p3-zb-h2": build("zb-h2", 3, 3),
    "p3-zb-v-m2": build("zb-v", 3, 2),
    "p4-zb-h1-m2": build("zb-h1", 4, 2),
    "p4-zb-v": build("zb-v", 4, 4),
}
SHORT = {
    "p3-list": reordered(3),
    "p3-gpipe": build("gpipe", 3, 3),
    "p3-interleaved": build("interleaved", 3, 3),
    "p3-random-v": placed(3, "v", 3),
    "p3-random-four-stages": placed(3, "four-stages", 3),
}
SPOILS = {0: (1, TO_CLIP), 3: (2, NAN), 4: (1, TO_CLIP), 8: (2, TO_CLIP), 11: (0, INF)}
LINEAR, V = build("zb-h2", 3, 3), build("zb-v", 3, 2)
TIED = [("1.weight", "3.weight")]


def short(schedule=LINEAR, spoils=SPOILS, **what):
    return Case(schedule, 12, spoils, **what)


CASES = {
    **{key: Case(s, NUM_STEPS, in_turn(s.num_ranks)) for key, s in LONG.items()},
    "p3-accumulating": Case(V, NUM_STEPS, in_turn(3), accumulates=2),
    **{key: short(schedule) for key, schedule in SHORT.items()},
    "p3-fused": short(V, optimizer=of_class(torch.optim.AdamW, lr=0.01, fused=True)),
    "p3-groups": short(V, optimizer=groups),
    "p3-snapshot": short(V, optimizer=of_class(torch.optim.RAdam, lr=0.01)),
    "p3-adafactor": short(optimizer=of_class(torch.optim.Adafactor, lr=0.1)),
    "p3-lion": short(V, optimizer=of_class(Lion, lr=0.01), does=("changes", "schedules")),
    "p3-tied": short(layers=linears, options={"tied": TIED}),
    "p3-sparse": short(layers=sparse, optimizer=of_class(torch.optim.SGD, lr=0.1)),
    "p3-masters": short(
        V, layers=halves, optimizer=of_class(torch.optim.AdamW, master_weights=True)
    ),
    "p3-masters-snapshot": short(
        layers=halves, optimizer=of_class(torch.optim.NAdam, master_weights=True)
    ),
    "p3-scaled": short(V, optimizer=scaled),
    "p3-scaled-by-torch": short(optimizer=scaled_by_torch, accumulates=2),
    "p3-schedules": short(V, does=("schedules", "changes")),
    "p3-shapes": short(does=("shapes",)),
    "p3-shapes-v": short(V, does=("shapes",)),
    "p3-evaluates": short(does=("evaluates",)),
    "p3-frozen": short(spoils={1: (2, TO_CLIP), 4: (0, NAN), 5: (2, INF)}, does=("freezes",)),
    "p3-hooks": short(does=("hooks",)),
    "p3-unaligned": short(layers=plain, rows=3),
    "p3-idle": short(
        layers=idle_in_the_middle, spoils={s: (2, TO_CLIP) for s in (1, 2, 5)}
    ),
}


@pytest.fixture(scope="module")
def trained():
    """Launch the processes for one number of ranks when they are first asked for."""
    found = {}

    def of(num_ranks):
        if num_ranks not in found:
            cases = {key: case for key, case in CASES.items() if key.startswith(f"p{num_ranks}")}
            found[num_ranks] = launch(compare, num_ranks, cases, timeout=200)
        return values(found[num_ranks])

    return of


@pytest.mark.parametrize("key", CASES)
def test_guessing_ends_with_the_bits_of_waiting(key, trained):
    for rank, of_rank in enumerate(trained(CASES[key].schedule.num_ranks)):
        (losses, learned, _), (actual_losses, actual, _) = of_rank[key]
        assert actual_losses == losses, f"rank {rank}"
        assert actual == learned, f"rank {rank}"


def expected_counters(case):
    """Count what happens to every step; nothing but what is spoilt is clipped or skipped."""
    chain = list(dict.fromkeys(case.schedule.placement.stage_to_rank))
    first_to_guess = 1 if "hooks" in case.does else 0
    counts = dict.fromkeys(
        ("num_steps", "num_validated", "num_clipped", "num_skipped", "num_replayed"), 0
    )
    expects_to_clip = False
    for step in range(case.num_steps):
        rank, value = case.spoils.get(step, (None, 0.0))
        seen_at = len(chain) - 1 if rank is None else min(chain.index(rank), len(chain) - 1)
        guesses = not expects_to_clip and seen_at > first_to_guess
        is_settled_at_once = step == case.num_steps - 1 or (
            "evaluates" in case.does and step % 3 == 0
        )
        counts["num_steps"] += 1
        counts["num_validated"] += guesses and rank is None
        counts["num_clipped"] += value == TO_CLIP
        counts["num_skipped"] += value != TO_CLIP and rank is not None
        counts["num_replayed"] += guesses and rank is not None and not is_settled_at_once
        expects_to_clip = value == TO_CLIP
    return counts


@pytest.mark.parametrize("key", CASES)
def test_every_rank_counts_what_happened(key, trained):
    case = CASES[key]
    expected = expected_counters(case)
    without_guesses = expected | {"num_validated": 0, "num_replayed": 0}
    for (_, _, waited), (_, _, guessed) in (r[key] for r in trained(case.schedule.num_ranks)):
        assert guessed == expected | {"grad_norm": waited["grad_norm"]}
        assert waited == without_guesses | {"grad_norm": waited["grad_norm"]}
