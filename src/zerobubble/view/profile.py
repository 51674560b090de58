"""How is a profile shown? A line for each distinct layer, and one for the links."""

import math
from collections import Counter
from collections.abc import Iterator

from zerobubble.profile import LayerCosts, Link, Profile
from zerobubble.view.numbers import table

_COLUMNS = [
    "layer", "alike", "F ms", "B ms", "W ms", "plain ms", "step ms",
    "saves", "W keeps", "output", "weights", "state",
]  # fmt: skip
# An F that differs by this factor, and by so many ms, is doubtful.
_DOUBTFUL, _LEAST_MS = 1.25, 0.1
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def draw_profile(profile: Profile) -> str:
    """Draw a table for each microbatch size; like layers share a line under the first one's name.

    ``saves`` is what F holds for the backward with the layer's input, ``plain`` the time of forward
    and backward where the backward is not split, ``step`` that of the optimizer, ``weights`` are
    parameters and gradients, ``state`` is the optimizer's.

    >>> layer = LayerCosts(1, 2, 1.5, 1, 3.4, 0.1, 4096, 1024, 512, 512, 0, 512, 2048, 2048, 6144)
    >>> print(draw_profile(Profile("mine", "cpu", ("first", "second"), {4: (layer, layer)})))
    mine on cpu, microbatches of 4
    layer  alike   F ms   B ms   W ms  plain ms  step ms    saves  W keeps  output  weights  state
    first      2  1.000  2.000  1.500     4.400    0.100  4.5 KiB    1 KiB   512 B    4 KiB  6 KiB
    links: latency 0 us, no limit of bandwidth; besides ops and optimizer a step takes 0 ms
    """
    return "\n".join([*_tables(profile), _describe_links(profile)])


def doubts(profile: Profile) -> Iterator[str]:
    """Say in one line where a measured F took another time split than plain.

    The two do the same but for the calls that are intercepted, and were measured in turn: the
    machine did other things.

    >>> layers = (LayerCosts(19.2, plain_forward_ms=19.1), LayerCosts(33.3, plain_forward_ms=19.1))
    >>> list(doubts(Profile("mine", "cpu", ("first", "second"), {2: layers})))
    ['F of second took 33.3 ms split and 19.1 ms plain with microbatches of 2: ...']
    """
    differing = [
        (high / max(low, _LEAST_MS), name, size, layer)
        for size, layers in profile.layers.items()
        for name, layer in zip(profile.layer_names, layers, strict=True)
        for low, high in [sorted((layer.forward_ms, layer.plain_forward_ms))]
        if high > _DOUBTFUL * low and high - low > _LEAST_MS
    ]
    if differing:
        _, name, size, layer = max(differing, key=lambda each: each[0])
        yield (
            f"F of {name} took {layer.forward_ms:.3g} ms split and {layer.plain_forward_ms:.3g} ms "
            f"plain with microbatches of {size}: was the machine busy? Measure again, or longer "
            "with --seconds"
        )


def _tables(profile: Profile) -> Iterator[str]:
    for size in profile.layers:
        yield f"{profile.model} on {profile.device}, microbatches of {size}"
        yield table(_COLUMNS, list(_rows(profile, size)))


def _rows(profile: Profile, size: int) -> Iterator[list[str]]:
    layers = profile.at(size)
    first_names: dict[LayerCosts, str] = {}
    for name, costs in zip(profile.layer_names, layers, strict=True):
        first_names.setdefault(costs, name)
    num_alike = Counter(layers)
    for costs, name in first_names.items():
        times = (
            costs.forward_ms,
            costs.backward_input_ms,
            costs.backward_weight_ms,
            costs.plain_forward_ms + costs.plain_backward_ms,
            costs.optimizer_ms,
        )
        sizes = (
            costs.activation_bytes + costs.saved_input_bytes,
            costs.kept_bytes + costs.kept_input_bytes,
            costs.output_bytes,
            costs.parameter_bytes + costs.gradient_bytes,
            costs.optimizer_bytes,
        )
        numbers = (*(f"{ms:.3f}" for ms in times), *map(show_bytes, sizes))
        yield [name, str(num_alike[costs]), *numbers]


def show_bytes(num_bytes: float) -> str:
    """Write a size with the unit that suits it.

    >>> show_bytes(0), show_bytes(1536), show_bytes(80e9)
    ('0 B', '1.5 KiB', '74.51 GiB')
    """
    power = min(len(_UNITS) - 1, int(math.log(num_bytes, 1024))) if num_bytes >= 1 else 0
    return f"{num_bytes / 1024**power:.4g} {_UNITS[power]}"


def _describe_links(profile: Profile) -> str:
    links = [f"links: {_describe(profile.link)}"]
    links += [f"{a}-{b}: {_describe(link)}" for (a, b), link in sorted(profile.links.items())]
    if profile.host != Link():
        links.append(f"host: {_describe(profile.host)}")
    overhead = f"besides ops and optimizer a step takes {profile.step_overhead_ms:.3g} ms"
    return "; ".join([*links, overhead])


def _describe(link: Link) -> str:
    limit = "no limit of bandwidth"
    if not math.isinf(link.bytes_per_ms):
        limit = f"{link.bytes_per_ms / 1e6:.3g} GB/s"
    return f"latency {link.latency_ms * 1e3:.3g} us, {limit}"
