"""Does compiled code leave the same W items as eager code, with the same gradients?"""

import copy
import functools
import gc
import io
import shutil
import threading
import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from split_cases import CASES
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from zerobubble.autograd import WeightQueue, compiled, deferring, ready_to_defer
from zerobubble.train.config import ModelConfig
from zerobubble.train.model import build_layers

# Whole models, and how many ops each leaves to W; a method call such as x @ weight stays in B.
MODELS = {
    "tied_head": 6,
    "frozen": 2,
    "in_place": 3,
    "nested_outputs": 2,
    "addmm": 1,
    "autocast_twice": 3,
    "autocast_checkpoint": 8,
    "experts": 7,
}
MAY_BREAK = {"autocast_checkpoint"}
compile_fast = functools.partial(torch.compile, backend="aot_eager")


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _gradients(model, call, microbatches, *, split):
    """Run F and B of every microbatch, then W in reverse order; return gradients and counts."""
    model.zero_grad()
    queues, found = [WeightQueue() for _ in microbatches], {}
    for i, (queue, inputs) in enumerate(zip(queues, microbatches, strict=True)):
        inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        torch.manual_seed(i)
        with deferring(queue) if split else nullcontext():
            outputs = [y for y in tree_leaves(call(*inputs)) if isinstance(y, torch.Tensor)]
        found |= {f"output {j} of {i}": y.detach().clone() for j, y in enumerate(outputs)}
        outputs = [y for y in outputs if y.requires_grad]
        with deferring(queue) if split else nullcontext():
            torch.autograd.backward(outputs, [torch.randn_like(y) for y in outputs])
        found |= {f"gradient of input {j} of {i}": x.grad for j, x in enumerate(inputs)}
    num_deferred = [len(queue) for queue in queues]
    for queue in queues:
        queue.run()
    found |= {name: p.grad for name, p in model.named_parameters()}
    return {name: t.clone() for name, t in found.items() if t is not None}, num_deferred


def _assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize("name", MODELS)
def test_compiled_gradients_equal_compiled_plain_backward(name):
    model = CASES[name].build()
    call = compile_fast(model, fullgraph=name not in MAY_BREAK)
    microbatches = [CASES[name].inputs() for _ in range(2)]
    expected, _ = _gradients(model, call, microbatches, split=False)
    actual, num_deferred = _gradients(model, call, microbatches, split=True)
    _assert_equal(actual, expected)
    assert num_deferred == [MODELS[name]] * 2


def test_dropout_draws_the_same_mask():
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16))
    call, microbatches = compile_fast(model, fullgraph=True), [(torch.randn(4, 16),)] * 2
    expected, _ = _gradients(model, call, microbatches, split=False)
    actual, num_deferred = _gradients(model, call, microbatches, split=True)
    _assert_equal(actual, expected)
    assert num_deferred == [2, 2]


@pytest.mark.slow
def test_inductor_gradients_equal_compiled_plain_backward():
    if shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler on a CPU")
    config = ModelConfig(layers=2, dim=16, heads=2, sequence=8)
    model = nn.Sequential(*(build() for build in build_layers(config)))
    call = torch.compile(model, fullgraph=True)
    microbatches = [(torch.randint(0, 256, (2, 8)),) for _ in range(2)]
    expected, _ = _gradients(model, call, microbatches, split=False)
    actual, num_deferred = _gradients(model, call, microbatches, split=True)
    _assert_equal(actual, expected)
    assert num_deferred == [1 + 2 * 4 + 1] * 2


def test_one_graph_serves_all_modules_of_a_kind_and_all_microbatches():
    layers, counter = [nn.Linear(3, 3) for _ in range(3)], CompileCounterWithBackend("aot_eager")
    call = torch.compile(lambda layer, x: layer(x), backend=counter, fullgraph=True)
    queues = [WeightQueue(), WeightQueue()]
    for i, queue in enumerate(queues):
        for j, layer in enumerate(layers):
            with deferring(queue):
                call(layer, torch.full((2, 3), 1.0 + i)).backward(torch.full((2, 3), 1.0 + j))
    assert counter.frame_count == 1
    for queue in queues:
        queue.run()
    for j, layer in enumerate(layers):
        assert torch.equal(layer.weight.grad, torch.full((3, 3), (1.0 + j) * (2 + 4)))


def test_code_compiled_outside_works_inside_and_the_other_way_round():
    linear, queue, counter = nn.Linear(3, 3), WeightQueue(), CompileCounterWithBackend("aot_eager")
    call = torch.compile(linear, backend=counter, fullgraph=True)
    for number in range(1, 4):
        linear.zero_grad()
        call(torch.ones(1, 3)).sum().backward()
        assert torch.equal(linear.weight.grad, torch.ones(3, 3))
        with ready_to_defer():
            call(torch.ones(1, 3)).sum().backward()
        assert torch.equal(linear.weight.grad, torch.full((3, 3), 2.0))
        with deferring(queue):
            call(torch.ones(1, 3)).sum().backward()
        assert (len(queue), linear.weight.grad[0, 0].item()) == (1, 2), number
        queue.run()
        assert torch.equal(linear.weight.grad, torch.full((3, 3), 3.0))
    assert counter.frame_count <= 3


def test_same_product_twice_counts_twice():
    linear, queue = nn.Linear(3, 3), WeightQueue()
    call = compile_fast(lambda x: linear(x) + linear(x), fullgraph=True)
    with deferring(queue):
        call(torch.ones(1, 3)).sum().backward()
    queue.run()
    assert torch.equal(linear.weight.grad, torch.full((3, 3), 2.0))
    assert torch.equal(linear.bias.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("other", [nullcontext, lambda: deferring(WeightQueue())])
def test_queue_of_the_forward_counts_in_backward(other):
    linear, queue = nn.Linear(3, 3), WeightQueue()
    with deferring(queue):
        y = compile_fast(linear)(torch.ones(1, 3))
    with other():
        thread = threading.Thread(target=y.sum().backward)
        thread.start()
        thread.join()
    assert len(queue) == 1


def test_gradient_goes_to_b_when_the_queue_is_gone():
    linear = nn.Linear(3, 3)
    with deferring(WeightQueue()):
        y = compile_fast(linear)(torch.ones(1, 3))
    gc.collect()
    y.sum().backward()
    assert torch.equal(linear.weight.grad, torch.ones(3, 3))


def test_post_accumulate_hook_fires_once_after_w():
    linear, queue, seen = nn.Linear(3, 3), WeightQueue(), []
    linear.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    with deferring(queue):
        compile_fast(linear)(torch.randn(1, 3, requires_grad=True)).sum().backward()
    assert seen == []
    queue.run()
    assert len(seen) == 1
    assert torch.equal(seen[0], linear.weight.grad)


def test_parameter_with_tensor_hook_stays_in_b():
    linear, queue = nn.Linear(3, 3), WeightQueue()
    call = compile_fast(linear)
    for num_deferred, factor in ((1, 1.0), (0, 2.0)):
        with deferring(queue):
            call(torch.ones(1, 3)).sum().backward()
        assert len(queue) == num_deferred
        queue.run()
        assert torch.equal(linear.weight.grad, torch.full((3, 3), factor))
        linear.zero_grad()
        linear.weight.register_hook(lambda g: g * 2)


def test_gradient_asked_for_by_name_leaves_parameters_alone():
    linear, queue, x = nn.Linear(3, 3, bias=False), WeightQueue(), torch.ones(1, 3).requires_grad_()
    with deferring(queue):
        (dx,) = torch.autograd.grad(compile_fast(linear)(x).sum(), x)
    assert torch.equal(dx[0], linear.weight.sum(0))
    assert (len(queue), linear.weight.grad) == (0, None)


def test_dynamic_shapes_are_one_graph():
    linear, queue, counter = nn.Linear(3, 3), WeightQueue(), CompileCounterWithBackend("aot_eager")
    call = torch.compile(linear, backend=counter, fullgraph=True, dynamic=True)
    for num_rows in (2, 5, 7):
        with deferring(queue):
            call(torch.ones(num_rows, 3)).sum().backward()
    assert (counter.frame_count, len(queue)) == (1, 3)
    queue.run()
    assert torch.equal(linear.weight.grad, torch.full((3, 3), 14.0))


def test_graph_breaks_leave_every_part_deferred():
    class Broken(nn.Sequential):
        def forward(self, x):
            for layer in self:
                x = layer(x)
                torch._dynamo.graph_break()
            return x

    model, queue = Broken(*(nn.Linear(3, 3) for _ in range(3))), WeightQueue()
    with deferring(queue):
        compile_fast(model)(torch.ones(1, 3)).sum().backward()
    assert len(queue) == 3
    assert all(layer.weight.grad is None for layer in model)


def test_checkpoint_inside_compiled_code():
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8)) for _ in range(2)
    )

    def run(x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    call, microbatches = compile_fast(run, fullgraph=True), [(torch.randn(4, 8),)] * 2
    expected, _ = _gradients(blocks, call, microbatches, split=False)
    actual, num_deferred = _gradients(blocks, call, microbatches, split=True)
    _assert_equal(actual, expected)
    assert num_deferred == [4, 4]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_around_compiled_code(use_reentrant):
    model, queue = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), WeightQueue()
    call, x = compile_fast(model), torch.randn(2, 3, requires_grad=True)
    model(x).sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    with deferring(queue):
        y = checkpoint(call, x, use_reentrant=use_reentrant)
    with deferring(queue):
        y.sum().backward()
    assert len(queue) == 2
    queue.run()
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(p.grad, gradient)


def test_parameter_whose_data_is_replaced_is_read_anew():
    linear, queue = nn.Linear(3, 3, bias=False), WeightQueue()
    call, x = compile_fast(linear), torch.ones(1, 3)
    for value in (1.0, 2.0):
        linear.weight.data = torch.full((3, 3), value)
        with deferring(queue):
            assert torch.equal(call(x), torch.full((1, 3), 3 * value))


def test_copies_of_a_model_keep_their_own_gradients():
    first = nn.Linear(3, 3)
    with deferring(WeightQueue()):
        compile_fast(first)(torch.ones(1, 3))
    file = io.BytesIO()
    torch.save(first, file)
    file.seek(0)
    for second in (copy.deepcopy(first), torch.load(file, weights_only=False)):
        queue = WeightQueue()
        with deferring(queue):
            compile_fast(second)(torch.ones(1, 3)).sum().backward()
        queue.run()
        assert torch.equal(second.weight.grad, torch.ones(3, 3))
    assert first.weight.grad is None


def test_models_and_queues_are_not_kept_alive():
    linear, queue = nn.Linear(3, 3), WeightQueue()
    with deferring(queue):
        compile_fast(linear)(torch.ones(1, 3)).sum().backward()
    parameter, number = linear.weight, compiled.address.parameters.of(linear.weight)
    assert compiled.address.parameters.find(number) is parameter
    queue_number = compiled.address.queues.of(queue)
    torch._dynamo.reset()
    del linear, parameter, queue
    gc.collect()
    assert compiled.address.parameters.find(number) is None
    assert compiled.address.queues.find(queue_number) is None


def test_without_grad_and_under_transforms_nothing_is_deferred():
    linear, queue, x = nn.Linear(3, 3), WeightQueue(), torch.ones(2, 4, 3)
    with deferring(queue), torch.no_grad():
        assert not compile_fast(linear)(x).requires_grad
    with deferring(queue):
        y = compile_fast(lambda x: torch.func.vmap(linear)(x), fullgraph=True)(x)
    torch.testing.assert_close(y, linear(x))
    y.sum().backward()
    assert len(queue) == 0
    assert torch.equal(linear.weight.grad, torch.full((3, 3), 8.0))


def test_what_cannot_be_deferred_is_said_once(monkeypatch):
    monkeypatch.setattr(compiled, "_unavailable", "this torch has no effects")
    monkeypatch.setattr(compiled, "_said", set())
    linear, queue = nn.Linear(3, 3), WeightQueue()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch._dynamo.reset()
            with deferring(queue):
                compile_fast(linear, fullgraph=True)(torch.ones(1, 3)).sum().backward()
    assert [str(w.message) for w in caught if "compiled code" in str(w.message)] == [
        "linear: compiled code keeps its parameter gradients in B, "
        "because this torch has no effects"
    ]
    assert len(queue) == 0
    assert torch.equal(linear.weight.grad, torch.full((3, 3), 2.0))


def test_code_being_exported_is_left_alone():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(3))

        def forward(self, x):
            return F.linear(x, self.weight)

    with deferring(WeightQueue()):
        graph = torch.export.export(Model(), (torch.ones(1, 3),), strict=True).graph
    assert [str(n.target) for n in graph.nodes if n.op == "call_function"] == [
        "aten.linear.default"
    ]
