"""Is a schedule found, built and described by its name?"""

import pytest

from zerobubble.costs import Costs
from zerobubble.errors import ScheduleError, UsageError
from zerobubble.ir import BW, F, linear, looped
from zerobubble.schedules import REGISTRY, build, recipe, schedule
from zerobubble.schedules.registry import parse_spec
from zerobubble.verify import verify

SIZES = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 3), (3, 7), (4, 8), (5, 4), (8, 16)]


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), SIZES)
def test_every_registered_schedule_obeys_the_rules(name, num_ranks, num_microbatches):
    try:
        built = build(name, num_ranks, num_microbatches)
    except ScheduleError:
        built = None
    if built is None:
        assert num_microbatches % num_ranks, "only a remainder may be refused"
        return
    verify(built)
    assert built.placement == recipe(name).place(num_ranks)
    assert built.name == name


@pytest.mark.parametrize("name", REGISTRY)
def test_every_registered_schedule_is_described(name):
    found = recipe(name)
    assert found.summary.endswith(".")
    assert found.paper.startswith("arXiv ")
    assert ">>> print(draw(" in (found.order.__doc__ or "")


def test_parameters_are_part_of_the_name():
    built = build("interleaved:v=3", num_ranks=2, num_microbatches=4)
    assert built.name == "interleaved:v=3"
    assert built.placement == looped(2, 3)
    assert build("interleaved", 2, 4).placement == looped(2, 2)
    assert parse_spec("a:b=1,c=22") == ("a", {"b": 1, "c": 22})


@pytest.mark.parametrize(
    ("spec", "sizes", "message"),
    [
        (
            "zb-h3",
            (2, 2),
            "unknown schedule 'zb-h3': did you mean zb-h2? known are breadth-first, ",
        ),
        ("xyz", (2, 2), "unknown schedule 'xyz': known are breadth-first, "),
        ("1f1b", (0, 2), "1f1b: ranks must be at least 1, not 0"),
        ("1f1b", (2, 0), "1f1b: microbatches must be at least 1, not 0"),
        ("interleaved:v=0", (2, 2), "interleaved: v must be at least 1, not 0"),
        ("interleaved:w=2", (2, 2), "interleaved has no parameter 'w'; it takes v"),
        ("1f1b:v=2", (2, 2), "1f1b has no parameter 'v'; it takes none"),
        ("interleaved:v", (2, 2), "schedule 'interleaved:v': write parameters as interleaved:v=2"),
        ("interleaved:v=-1", (2, 2), "schedule 'interleaved:v=-1': write parameters as "),
    ],
)
def test_a_wrong_name_or_number_is_told(spec, sizes, message):
    with pytest.raises(UsageError) as error:
        build(spec, *sizes)
    assert str(error.value).startswith(message)


def test_interleaved_needs_whole_groups():
    with pytest.raises(
        ScheduleError, match="interleaved needs a multiple of 4 microbatches, not 6"
    ):
        build("interleaved", 4, 6)


def test_a_schedule_may_depend_on_the_costs(monkeypatch):
    monkeypatch.setattr("zerobubble.schedules.registry.REGISTRY", {})

    @schedule("by-costs", placement=linear, paper="none")
    def by_costs(rank, *, num_ranks, num_microbatches, costs):
        """Run gpipe or 1f1b, whichever the costs ask for."""
        first = num_microbatches if costs.forward[0] > 1 else 1
        yield from (F(rank, i) for i in range(first))
        for i in range(num_microbatches):
            yield BW(rank, i)
            yield from (F(rank, j) for j in range(first + i, min(first + i + 1, num_microbatches)))

    found = recipe("by-costs")
    assert (found.takes_costs, found.parameters) == (True, {})
    assert found.build(1, 2) == build("by-costs", 1, 2, Costs.uniform(1, f=1))
    assert [str(op) for op in build("by-costs", 1, 2, Costs.uniform(1, f=2)).ops(0)] == [
        "F0 of stage 0",
        "F1 of stage 0",
        "BW0 of stage 0",
        "BW1 of stage 0",
    ]
