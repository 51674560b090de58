"""Does a split call run B and W when asked, and refuse what is out of order?"""

import copy

import pytest
import torch
from torch import nn

import zerobubble as zb


def _layers():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_gradients_of_calls_in_flight_are_those_of_plain_backward():
    split, plain = _layers(), _layers()
    plain.load_state_dict(split.state_dict())
    inputs = [torch.randn(5, 3, requires_grad=True) for _ in range(3)]
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    calls = [zb.splitting(split)(x) for x in inputs]
    for i in (1, 0, 2):
        calls[i].backward_input(calls[i].output.detach().cos())
    assert all(p.grad is None for p in split.parameters())
    for i in (2, 1, 0):
        calls[i].backward_weight()
    for i in (2, 1, 0):
        y = plain(copies[i])
        y.backward(y.detach().cos())
    for a, b in zip([*inputs, *split.parameters()], [*copies, *plain.parameters()], strict=True):
        assert torch.equal(a.grad, b.grad)


def test_scalar_output_needs_no_gradient_and_a_function_may_be_split():
    linear, x = nn.Linear(3, 1), torch.ones(4, 3)
    call = zb.splitting(lambda x, *, scale: (scale * linear(x)).sum())(x, scale=2.0)
    call.backward_input()
    call.backward_weight()
    assert torch.equal(linear.weight.grad, torch.full((1, 3), 8.0))


def test_backward_goes_on_into_what_made_an_input():
    x, linear = torch.ones(1, 3, requires_grad=True), nn.Linear(3, 3)
    call = zb.splitting(linear)(x * 2)
    call.backward_input(torch.ones(1, 3))
    assert torch.equal(x.grad, 2 * torch.ones(1, 3) @ linear.weight)


def test_chain_of_calls_is_cut_at_leaves():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    first = zb.splitting(a)(torch.ones(1, 3))
    x = first.output.detach().requires_grad_()
    second = zb.splitting(b)(x)
    second.backward_input(torch.ones(1, 3))
    first.backward_input(x.grad)
    first.backward_weight()
    assert b.bias.grad is None
    second.backward_weight()
    assert torch.equal(a.bias.grad[None], torch.ones(1, 3) @ b.weight)


def test_nested_outputs_take_gradients_in_order_and_none_for_no_gradient():
    a, b = nn.Linear(3, 2), nn.Linear(3, 4)
    call = zb.splitting(lambda x: {"a": a(x), "rest": [b(x), x, 3]})(torch.ones(1, 3))
    call.backward_input(None, torch.ones(1, 4))
    call.backward_weight()
    assert a.weight.grad is None or not a.weight.grad.any()
    assert torch.equal(b.bias.grad, torch.ones(4))


def test_output_without_graph_has_nothing_to_do():
    call = zb.splitting(nn.Linear(3, 3).requires_grad_(False))(torch.ones(1, 3))
    call.backward_input()
    call.backward_weight()


def test_w_before_b_is_an_error():
    call = zb.splitting(_layers())(torch.ones(1, 3))
    with pytest.raises(RuntimeError, match=r"W .* before its B: run backward_input\(\) first"):
        call.backward_weight()


def test_b_twice_is_an_error():
    call = zb.splitting(_layers())(torch.ones(1, 3))
    call.backward_input(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="B of this call was run before"):
        call.backward_input(torch.ones(1, 2))


def test_w_twice_is_an_error():
    module = _layers()
    call = zb.splitting(module)(torch.ones(1, 3))
    call.backward_input(torch.ones(1, 2))
    call.backward_weight()
    before = copy.deepcopy([p.grad for p in module.parameters()])
    with pytest.raises(RuntimeError, match="W of this call was run before"):
        call.backward_weight()
    gradients = [p.grad for p in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, gradients, strict=True))


@pytest.mark.parametrize(
    "gradients", [(), (torch.ones(2),), (torch.ones(1, 2), torch.ones(1, 2)), (None, None)]
)
def test_wrong_gradients_are_an_error_and_the_right_ones_still_taken(gradients):
    call = zb.splitting(_layers())(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"one gradient for each output .* \[\(1, 2\)\], not \["):
        call.backward_input(*gradients)
    call.backward_input(torch.ones(1, 2))


def test_main_grad_holds_also_what_b_computed():
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).bfloat16()
    for _ in range(2):
        call = zb.splitting(module, main_grad=True)(torch.ones(4, 3).bfloat16())
        call.backward_input(torch.ones(4, 3).bfloat16())
        call.backward_weight()
    assert all(p.grad is None for p in module.parameters())
    assert module[1].bias.main_grad.dtype == torch.float32
    assert torch.equal(module[1].bias.main_grad, torch.full((3,), 8.0))


def test_fused_is_passed_on():
    call = zb.splitting(_layers(), fused=True)(torch.ones(1, 3))
    assert (call.queue.fused, call.queue.main_grad) == (True, False)


def _called(change):
    """Run F, B and W with a change after F; likewise F and the backward of a copy."""
    split = _layers()
    plain = copy.deepcopy(split)
    x = torch.randn(5, 3, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    call, output = zb.splitting(split)(x), plain(y)
    change(split)
    change(plain)
    call.backward_input(torch.ones(5, 2))
    call.backward_weight()
    output.backward(torch.ones(5, 2))
    return [x, *split.parameters()], [y, *plain.parameters()]


def _hook(layers):
    layers[0].weight.register_hook(lambda gradient: 10 * gradient)


def _freeze(layers):
    layers[0].weight.requires_grad_(False)


def _give_other_data(layers):
    layers[2].weight.data = torch.full((2, 4), 3.0)


@pytest.mark.parametrize("change", [_hook, _freeze, _give_other_data])
def test_what_is_done_to_a_parameter_between_f_and_b_counts_as_in_plain_backward(change):
    for a, b in zip(*_called(change), strict=True):
        assert (a.grad is None) == (b.grad is None)
        assert a.grad is None or torch.equal(a.grad, b.grad)


def test_biases_as_large_as_the_output_have_gradients_of_their_own():
    b1, b2, w = (nn.Parameter(torch.ones(2, 3, 3)) for _ in range(3))
    split = zb.splitting(lambda x: torch.baddbmm(b1, x, w) + torch.baddbmm(b2, x, w))
    for _ in range(2):
        call = split(torch.ones(2, 3, 3))
        call.backward_input(torch.ones(2, 3, 3))
        call.backward_weight()
    assert torch.equal(b1.grad, torch.full((2, 3, 3), 2.0))
    assert torch.equal(b2.grad, b1.grad)
    assert b1.grad.data_ptr() != b2.grad.data_ptr()


@pytest.mark.parametrize("when", ["F", "B"])
def test_group_offsets_that_change_too_early_are_an_error(when):
    offs, w = torch.tensor([2, 4], dtype=torch.int32), nn.Parameter(torch.ones(2, 8, 8))
    x = torch.ones(4, 8, requires_grad=True)
    call = zb.splitting(lambda x: nn.functional.grouped_mm(x, w, offs=offs))(x)
    if when == "B":
        call.backward_input(torch.ones(4, 8))
    offs[0] = 3
    with pytest.raises(RuntimeError, match=r"grouped_mm: offs of shape \(2,\) was modified in"):
        call.backward_weight() if when == "B" else call.backward_input(torch.ones(4, 8))


def test_w_after_a_failed_b_is_refused():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            raise ValueError("failed")

    linear = nn.Linear(3, 3)
    call = zb.splitting(lambda x: linear(Failing.apply(linear(x))))(torch.ones(1, 3))
    with pytest.raises(ValueError, match="failed"):
        call.backward_input(torch.ones(1, 3))
    with pytest.raises(RuntimeError, match="W of this call after a B or W that failed"):
        call.backward_weight()
    assert linear.weight.grad is None


def test_an_output_that_hides_its_tensors_is_refused():
    class Output:
        def __init__(self, y):
            self.y = y

    layers = _layers()
    call = zb.splitting(lambda x: Output(layers(x)))(torch.ones(1, 3))
    with pytest.raises(RuntimeError, match="B finds no tensor in the output, a Output"):
        call.backward_input()


def test_main_grad_of_a_function_is_refused():
    with pytest.raises(TypeError, match="main_grad needs a module"):
        zb.splitting(lambda x: x, main_grad=True)
