"""Does a queue hold what W needs, check it, hand it to ``.grad`` and let go of it?"""

import copy
import gc
import weakref

import pytest
import torch
from op_cases import OP_CASES
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from zerobubble.autograd import WeightQueue, deferring


def _after_b(module, x, queue=None):
    queue = WeightQueue() if queue is None else queue
    with deferring(queue):
        module(x).sum().backward()
    return queue


def test_empty_queue_runs_as_nothing():
    queue = WeightQueue()
    queue.run()
    assert (len(queue), queue.nbytes) == (0, 0)


def test_nbytes_counts_input_and_output_gradient():
    linear = nn.Linear(3, 5)
    queue, dy = WeightQueue(), torch.ones(4, 5)
    with deferring(queue):
        linear(torch.randn(4, 3)).backward(dy)
    assert (len(queue), queue.nbytes) == (1, 4 * 3 * 4 + 4 * 5 * 4)


def test_nbytes_counts_a_shared_input_once():
    q, k, x = nn.Linear(3, 5), nn.Linear(3, 5), torch.randn(4, 3)
    queue = _after_b(lambda x: q(x).exp() + k(x).exp(), x)
    assert (len(queue), queue.nbytes) == (2, 4 * 3 * 4 + 2 * 4 * 5 * 4)


@pytest.mark.parametrize("kept_grad", [False, True])
def test_gradient_is_outside_any_graph_and_owned(kept_grad):
    linear, x = nn.Linear(3, 3), torch.randn(4, 3, requires_grad=True)
    if kept_grad:
        _after_b(linear, x).run()
    _after_b(linear, x).run()
    for p in linear.parameters():
        assert p.grad.grad_fn is None
        assert not p.grad.requires_grad
        assert p.grad.stride() == p.stride()
        assert p.grad.untyped_storage().nbytes() == p.grad.numel() * 4


def test_tied_parameters_own_their_gradients_separately():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    _after_b(lambda x: a(x) + b(x), torch.randn(4, 3)).run()
    storages = {p.grad.untyped_storage().data_ptr() for m in (a, b) for p in m.parameters()}
    assert len(storages) == 4


def test_only_needed_tensors_live_between_b_and_w():
    first, last = nn.Linear(3, 3), nn.Linear(3, 3)
    kept, dropped = [], []

    def run(x):
        h = first(x)
        dropped.append(weakref.ref(h))
        h = h.sigmoid()
        kept.append(weakref.ref(h.untyped_storage()))
        y = last(h)
        dropped.append(weakref.ref(y))
        return y.exp()

    queue = _after_b(run, torch.randn(4, 3))
    gc.collect()
    assert [ref() for ref in dropped] == [None, None]
    assert queue.nbytes == 4 * (4 * 3) * 4
    queue.run()
    assert queue.nbytes == 0


def test_each_item_is_freed_before_its_gradients_are_added():
    layers = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    queue = _after_b(layers, torch.randn(4, 3))
    items = [weakref.ref(t) for item in queue._items for t in (item.x, item.dy)]
    alive = []
    for layer in layers:
        layer.bias.register_post_accumulate_grad_hook(
            lambda _: alive.append((len(queue), sum(ref() is not None for ref in items)))
        )
    queue.run()
    assert alive == [(2, 4), (1, 2), (0, 0)]
    assert [ref() for ref in items] == [None] * 6


def test_many_microbatches_do_not_grow_the_number_of_live_tensors():
    linear, counts = nn.Linear(3, 3), []
    for _ in range(4):
        _after_b(linear, torch.randn(4, 3, requires_grad=True)).run()
        gc.collect()
        counts.append(sum(type(o) is torch.Tensor for o in gc.get_objects()))
    assert len(set(counts[1:])) == 1


@pytest.mark.parametrize("which", ["x", "dy"])
def test_tensor_written_between_b_and_w_is_an_error(which):
    a, b, x = nn.Linear(3, 5), nn.Linear(5, 4), torch.randn(2, 3)
    queue, dy = WeightQueue(), torch.ones(2, 4)
    with deferring(queue):
        b(a(x)).backward(dy)
    (x if which == "x" else dy).mul_(2)
    shape = r"\(2, 3\)" if which == "x" else r"\(2, 4\)"
    with pytest.raises(RuntimeError, match=rf"linear.*{shape}.*in place.*clone"):
        queue.run()
    assert all(p.grad is None for m in (a, b) for p in m.parameters())


def test_view_of_the_callers_buffer_may_be_reused_after_b():
    linear, buffer, queue = nn.Linear(3, 3), torch.ones(8, 3), WeightQueue()
    with deferring(queue):
        linear(torch.ones(4, 3)).backward(buffer[:4])
    buffer.zero_()
    queue.run()
    assert torch.equal(linear.bias.grad, torch.full((3,), 4.0))


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3)])
def test_output_gradient_that_another_split_op_made_is_not_copied(shape):
    first, last, addresses = nn.Linear(3, 3), nn.Linear(3, 3), []

    def run(x):
        h = first(x)
        h.register_hook(lambda dh: addresses.append(dh.data_ptr()))
        return last(h).exp()

    queue = _after_b(run, torch.randn(shape))
    assert [item.dy.data_ptr() for item in queue._items][1:] == addresses


def test_expanded_output_gradient_of_the_caller_stays_small():
    linear, queue, dy = nn.Linear(64, 64, bias=False), WeightQueue(), torch.ones(())
    with deferring(queue):
        linear(torch.ones(1, 64)).backward(dy.expand(1, 64))
    assert queue.nbytes == 64 * 4 + 4
    queue.run()
    assert torch.equal(linear.weight.grad, torch.ones(64, 64))


def test_contributions_of_one_queue_are_one_accumulation():
    linear, x, num_calls = nn.Linear(3, 3), torch.randn(4, 3), []
    linear.weight.register_post_accumulate_grad_hook(lambda p: num_calls.append(p.grad.clone()))
    queue = _after_b(lambda x: linear(linear(x)), x)
    queue.run()
    assert len(num_calls) == 1
    assert torch.equal(num_calls[0], linear.weight.grad)


def test_one_queue_may_serve_several_microbatches():
    linear, queue = nn.Linear(3, 3), WeightQueue()
    for _ in range(3):
        _after_b(linear, torch.ones(2, 3), queue)
    queue.run()
    assert torch.equal(linear.bias.grad, torch.full((3,), 6.0))


def test_gradient_of_higher_precision_is_added_in_that_precision():
    linear = nn.Linear(3, 3).bfloat16()
    linear.weight.grad_dtype = torch.float32
    linear.weight.grad = torch.full((3, 3), 1e-4)
    _after_b(linear, torch.ones(1, 3).bfloat16()).run()
    assert linear.weight.grad.dtype == torch.float32
    assert torch.equal(linear.weight.grad, torch.full((3, 3), 1e-4) + 1)


def test_dense_gradient_joins_a_sparse_one():
    weight, indices = nn.Parameter(torch.ones(4, 3)), torch.tensor([1, 1])
    queue = WeightQueue()
    with deferring(queue):
        h = nn.functional.embedding(indices, weight, sparse=True)
        nn.functional.linear(h, weight).sum().backward()
    queue.run()
    expected = torch.full((4, 3), 2.0)
    expected[1] += 8
    assert torch.equal(weight.grad.to_dense(), expected)


def test_queue_refers_to_no_graph():
    x = torch.randn(4, 3, requires_grad=True)
    queue = _after_b(nn.Linear(3, 3), x.exp())
    assert all(item.x.grad_fn is None and item.dy.grad_fn is None for item in queue._items)


def _two_microbatches(module, x, **options):
    for i in range(2):
        queue = WeightQueue(**options)
        with deferring(queue):
            module(x * (i + 1)).sum().backward()
        queue.run()


@pytest.mark.parametrize("num_rows", [8, 1024])
def test_fused_adds_within_the_gemm(num_rows):
    exact, x = nn.Linear(64, 48), torch.randn(num_rows, 64)
    fused, expected = copy.deepcopy(exact), copy.deepcopy(exact)
    gradients = [x.t() @ torch.ones(num_rows, 48) * i for i in (1, 2)]
    _two_microbatches(exact, x)
    _two_microbatches(fused, x, fused=True)
    for i in range(2):
        expected(x * (i + 1)).sum().backward()
    assert torch.equal(exact.weight.grad, expected.weight.grad)
    assert torch.equal(fused.bias.grad, expected.bias.grad)
    assert torch.allclose(fused.weight.grad, sum(gradients).t(), rtol=1e-5, atol=1e-3)
    same = torch.equal(fused.weight.grad, expected.weight.grad)
    assert same or num_rows == 1024
    error = (fused.weight.grad - expected.weight.grad).abs().max()
    assert error <= 2e-7 * expected.weight.grad.abs().max()


def test_fused_allocates_no_product():
    linear, x, addresses = nn.Linear(64, 64, bias=False), torch.randn(8, 64), []
    linear.weight.register_post_accumulate_grad_hook(lambda p: addresses.append(p.grad.data_ptr()))
    with _Products() as products:
        _two_microbatches(linear, x, fused=True)
    assert products.names == ["mm", "addmm_"]
    assert len(set(addresses)) == 1


class _Products(TorchDispatchMode):
    """Names the matrix products that W runs, those of F and B being on fewer rows."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if ("mm" in name and tuple(args[0].shape) == (64, 64)) or (
            name == "mm" and len(args[0]) == 64
        ):
            self.names.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_main_grad_sums_in_float32(dtype, fused):
    linear, x, seen = nn.Linear(8, 8).to(dtype), torch.randn(16, 8).to(dtype), []
    linear.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.main_grad.clone()))
    _two_microbatches(linear, x, fused=fused, main_grad=True)
    expected = torch.zeros(8, 8)
    for i in range(2):
        expected += torch.ones(16, 8, dtype=dtype).t().mm(x * (i + 1)).float()
        assert torch.equal(seen[i], expected) or (fused and torch.allclose(seen[i], expected))
    assert linear.weight.main_grad.dtype == linear.bias.main_grad.dtype == torch.float32
    assert torch.equal(linear.bias.main_grad, torch.full((8,), 32.0))
    assert linear.weight.grad is linear.bias.grad is None


def test_fused_sums_a_parameter_that_is_used_twice_first():
    linear, expected, x = nn.Linear(3, 3), nn.Linear(3, 3), torch.randn(4, 3)
    expected.load_state_dict(linear.state_dict())
    _two_microbatches(lambda x: linear(linear(x)), x, fused=True)
    for i in range(2):
        expected(expected(x * (i + 1))).sum().backward()
    assert torch.equal(linear.weight.grad, expected.weight.grad)


@pytest.mark.parametrize("which", ["x", "dy"])
@pytest.mark.parametrize("name", [name for name, case in OP_CASES.items() if case.num_deferred])
def test_tensor_of_any_op_written_between_b_and_w_is_an_error(name, which):
    model, inputs, queue = OP_CASES[name].build(), OP_CASES[name].inputs(), WeightQueue()
    with deferring(queue):
        y = model(*(x.requires_grad_() if x.is_floating_point() else x for x in inputs))
        y.backward(torch.ones_like(y))
    item = queue._items[-1]
    getattr(item, which).add_(1)
    message = f"W of {item.weight_gradient.op}: its .* was modified in place after B"
    with pytest.raises(RuntimeError, match=message):
        queue.run()
    assert len(queue) == OP_CASES[name].num_deferred
