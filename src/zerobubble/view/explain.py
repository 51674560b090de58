"""Where does the time go, in words? The critical path, idle time by cause, and the peak op."""

from zerobubble.view.facts import Facts

_MOST_RANKS = 8


def explain(facts: Facts) -> str:
    """Write the facts of a timeline, one line for each rank or, if there are many, for all.

    Shares are of the makespan.

    >>> from zerobubble import Costs, build, simulate
    >>> timeline = simulate(build("1f1b", num_ranks=2, num_microbatches=2), Costs.uniform(2))
    >>> print(explain(Facts(timeline)))
    critical path of 6 ops: compute 9 (100.0%), transfer 0 (0.0%), wait 0 (0.0%)
    memory peaks on rank 0 with F1 of stage 0 at 1
    idle on rank 0: waits for BW of stage 1 on rank 1 33.3%
    idle on rank 1: drain 22.2%, warm-up 11.1%
    """
    return "\n".join([_critical_path(facts), *_peak(facts), *_idle(facts)])


def _critical_path(facts: Facts) -> str:
    total = sum(facts.split) or 1.0
    times = facts.split._asdict()
    if not facts.timeline.schedule.has_copies:
        del times["copies"]
    parts = (f"{name} {time:.6g} ({time / total:.1%})" for name, time in times.items())
    return f"critical path of {len(facts.path)} ops: {', '.join(parts)}"


def _peak(facts: Facts) -> list[str]:
    peaks = facts.timeline.peak_memory_per_rank
    rank = peaks.index(max(peaks))
    found = facts.peak_op(rank)
    if found is None:
        return []
    return [f"memory peaks on rank {rank} with {found.op} at {found.start - facts.origin:.6g}"]


def _idle(facts: Facts) -> list[str]:
    by_rank, makespan = facts.idle_by_cause(), facts.timeline.makespan
    if not any(by_rank):
        return ["no rank is ever idle"]
    if len(by_rank) > _MOST_RANKS:
        sums: dict[str, float] = {}
        for causes in by_rank:
            for cause, time in causes.items():
                sums[cause] = sums.get(cause, 0.0) + time
        longest = dict(sorted(sums.items(), key=lambda pair: -pair[1]))
        return [f"idle on all ranks: {_shares(longest, makespan * len(by_rank))}"]
    return [
        f"idle on rank {rank}: {_shares(causes, makespan)}" for rank, causes in enumerate(by_rank)
    ]


def _shares(causes: dict[str, float], makespan: float) -> str:
    return ", ".join(f"{cause} {time / makespan:.1%}" for cause, time in causes.items()) or "never"
