"""How are the numbers of a timeline written as text?"""

from zerobubble.simulate import Timeline


def summarize(timeline: Timeline) -> str:
    """Write the numbers of a timeline: time, bubble and memory, overall and by rank.

    >>> from zerobubble import Costs, build, simulate
    >>> print(summarize(simulate(build("1f1b", num_ranks=2, num_microbatches=2), Costs.uniform(2))))
    span 9, bubble 33.3%
    makespan 9, bubble 33.3%
    peak memory 2
    idle by rank: 3 0
    peak memory by rank: 2 1
    """
    return "\n".join(
        (
            f"span {timeline.span:.6g}, bubble {timeline.bubble:.1%}",
            f"makespan {timeline.makespan:.6g}, bubble {timeline.bubble_makespan:.1%}",
            f"peak memory {timeline.peak_memory:.6g}",
            f"idle by rank: {_numbers(timeline.idle_per_rank)}",
            f"peak memory by rank: {_numbers(timeline.peak_memory_per_rank)}",
        )
    )


def table(header: list[str], rows: list[list[str]], left: int = 1) -> str:
    """Align columns of text: the first ``left`` ones to the left, numbers to the right.

    >>> print(table(["schedule", "span"], [["1f1b", "33"], ["zb-h1", "27"]]))
    schedule  span
    1f1b        33
    zb-h1       27
    """
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<"] * left + [">"] * (len(header) - left)
    return "\n".join(
        "  ".join(map("{:{}{}}".format, line, sides, widths)).rstrip() for line in lines
    )


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:.6g}" for value in values)
