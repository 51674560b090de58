"""Profiles that the tests of planning share."""

from hypothesis import strategies as st

from zerobubble.profile import LayerCosts, Link, Profile

sizes_in_bytes = st.integers(0, 12).map(lambda n: 64 * n)
halves = st.integers(0, 9).map(lambda n: n / 2)


def block(scale=1.0, **changes):
    """A layer with F = B = W and as much memory as its scale says."""
    values = {
        "forward_ms": scale,
        "backward_input_ms": scale,
        "backward_weight_ms": scale,
        "plain_forward_ms": scale,
        "plain_backward_ms": 2 * scale,
        "activation_bytes": 80 * scale,
        "kept_bytes": 40 * scale,
        "input_bytes": 20,
        "saved_input_bytes": 20,
        "kept_input_bytes": 20,
        "output_bytes": 20,
        "parameter_bytes": 100 * scale,
        "gradient_bytes": 100 * scale,
        "optimizer_bytes": 200 * scale,
    }
    return LayerCosts(**(values | changes))


def profile_of(scales, sizes=(1,), **others):
    """A profile of blocks; a microbatch of n samples takes n times as long as one."""
    layers = {
        size: tuple(
            block(scale * size, parameter_bytes=100 * scale, gradient_bytes=100 * scale,
                  optimizer_bytes=200 * scale)
            for scale in scales
        )
        for size in sizes
    }  # fmt: skip
    names = tuple(f"block {i}" for i in range(len(scales)))
    return Profile("blocks", "paper", names, layers, **others)


@st.composite
def layer_costs(draw):
    """Any layer: some cost nothing, sums are exact."""
    f, b, w, plain = (draw(halves) for _ in range(4))
    kept, freed, saved, kept_input, more = (draw(sizes_in_bytes) for _ in range(5))
    parameters, gradients, state = (draw(sizes_in_bytes) for _ in range(3))
    return LayerCosts(
        forward_ms=f,
        backward_input_ms=b,
        backward_weight_ms=w,
        plain_forward_ms=draw(st.sampled_from([f, f / 2, 2 * f])),
        plain_backward_ms=draw(st.sampled_from([b + w, plain])),
        optimizer_ms=draw(halves),
        activation_bytes=kept + freed,
        kept_bytes=kept,
        input_bytes=saved + kept_input,
        saved_input_bytes=draw(st.sampled_from([0, saved + kept_input])),
        kept_input_bytes=0,
        output_bytes=more,
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_bytes=state,
    )


@st.composite
def profiles(draw, most_layers=9):
    """Any profile of a few layers, for one or two microbatch sizes."""
    count = draw(st.integers(1, most_layers))
    sizes = draw(st.sampled_from([(1,), (1, 2), (2,)]))
    tables = {
        size: tuple(draw(st.lists(layer_costs(), min_size=count, max_size=count))) for size in sizes
    }
    return Profile(
        "any",
        "paper",
        tuple(f"layer {i}" for i in range(count)),
        tables,
        Link(draw(halves), draw(st.sampled_from([64.0, float("inf")]))),
        step_overhead_ms=draw(halves),
    )
