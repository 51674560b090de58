"""Is everything that should be caught caught, and everything else left alone?"""

import threading

import pytest
import torch
import torch.nn.functional as F
from op_cases import OP_CASES
from torch import nn
from torch.nn.functional import linear as imported_before
from torch.utils.checkpoint import checkpoint

from zerobubble.autograd import WeightQueue, deferring, ready_to_defer
from zerobubble.autograd.intercept import SITES


def _sites():
    return [(vars(owner).get(name), getattr(owner, name)) for owner, name, _ in SITES]


def test_every_site_is_patched_inside_and_restored_outside():
    before = _sites()
    with deferring(WeightQueue()):
        assert all(a[1] is not b[1] for a, b in zip(before, _sites(), strict=True))
    assert _sites() == before


def test_sites_are_restored_on_an_exception():
    before = _sites()
    wrong = torch.ones(1, 4)
    with pytest.raises(RuntimeError), deferring(WeightQueue()), deferring(WeightQueue()):
        nn.Linear(3, 3)(wrong)
    assert _sites() == before


def test_sites_stay_patched_between_blocks_and_what_is_outside_a_block_is_left_alone():
    before, queue, linear = _sites(), WeightQueue(), nn.Linear(3, 3)
    with ready_to_defer():
        patched = _sites()
        with deferring(queue):
            y = linear(torch.ones(1, 3))
            assert _sites() == patched != before
        assert _sites() == patched
        linear(torch.ones(1, 3)).sum().backward()
        assert len(queue) == 0
        assert torch.equal(linear.bias.grad, torch.ones(3))
        y.sum().backward()
        assert len(queue) == 1
    assert _sites() == before


def test_innermost_queue_counts_and_the_outer_one_comes_back():
    outer, inner, linear = WeightQueue(), WeightQueue(), nn.Linear(3, 3)
    with deferring(outer):
        a = linear(torch.ones(1, 3))
        with deferring(inner):
            b = linear(torch.ones(1, 3))
        with pytest.raises(RuntimeError), deferring(inner):
            linear(torch.ones(1, 4))
        c = linear(torch.ones(1, 3))
    (a + b + c).sum().backward()
    assert (len(outer), len(inner)) == (2, 1)


def test_queue_of_the_forward_counts_in_backward():
    mine, other, linear = WeightQueue(), WeightQueue(), nn.Linear(3, 3)
    with deferring(mine):
        y = linear(torch.ones(1, 3))
    with deferring(other):
        y.sum().backward()
    assert (len(mine), len(other)) == (1, 0)


def test_threads_keep_their_own_queues():
    queues, barrier = [WeightQueue(), WeightQueue()], threading.Barrier(2, timeout=30)
    linears = [nn.Linear(3, 3), nn.Linear(3, 3)]

    def run(i):
        with deferring(queues[i]):
            barrier.wait()
            for _ in range(i + 1):
                linears[i](torch.ones(1, 3)).sum().backward()
            barrier.wait()

    before = _sites()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(queue) for queue in queues] == [1, 2]
    assert _sites() == before


def test_thread_without_deferring_is_left_alone():
    linear, queue = nn.Linear(3, 3), WeightQueue()
    with deferring(queue):
        thread = threading.Thread(target=lambda: linear(torch.ones(1, 3)).sum().backward())
        thread.start()
        thread.join()
    assert len(queue) == 0
    assert linear.weight.grad is not None


def test_recompute_in_another_thread_finds_the_active_queue():
    linear, queue, x = nn.Linear(3, 3), WeightQueue(), torch.ones(1, 3, requires_grad=True)
    with deferring(queue):
        y = checkpoint(linear, x, use_reentrant=False)
        thread = threading.Thread(target=y.sum().backward)
        thread.start()
        thread.join()
    assert len(queue) == 1
    queue.run()
    assert torch.equal(linear.bias.grad, torch.ones(3))


def test_function_imported_by_name_stays_in_b():
    weight, queue = nn.Parameter(torch.eye(3)), WeightQueue()
    with deferring(queue):
        imported_before(torch.ones(2, 3), weight).sum().backward()
    assert len(queue) == 0
    assert torch.equal(weight.grad, torch.full((3, 3), 2.0))


@pytest.mark.parametrize("which", ["weight", "bias"])
def test_parameter_with_tensor_hook_stays_in_b(which):
    linear, queue, seen = nn.Linear(3, 3), WeightQueue(), []
    getattr(linear, which).register_hook(lambda g: seen.append(g.clone()) or g * 2)
    with deferring(queue):
        linear(torch.ones(1, 3)).sum().backward()
    assert len(queue) == 0
    assert len(seen) == 1
    assert torch.equal(getattr(linear, which).grad, 2 * seen[0])


def test_post_accumulate_hook_fires_once_after_w():
    linear, queue, seen = nn.Linear(3, 3), WeightQueue(), []
    for p in linear.parameters():
        p.register_post_accumulate_grad_hook(lambda p: seen.append((p, p.grad.clone())))
    with deferring(queue):
        linear(torch.ones(1, 3)).sum().backward()
    assert seen == []
    queue.run()
    assert [p is q for (p, _), q in zip(seen, linear.parameters(), strict=True)] == [True, True]
    assert all(torch.equal(gradient, p.grad) for p, gradient in seen)


def test_post_accumulate_hook_may_step_the_parameter():
    linear, queue = nn.Linear(3, 3), WeightQueue()
    expected = linear.weight.detach() - torch.ones(3, 3)
    linear.weight.register_post_accumulate_grad_hook(lambda p: p.sub_(p.grad))
    with deferring(queue):
        linear(torch.ones(1, 3)).sum().backward()
    queue.run()
    assert torch.equal(linear.weight, expected)


def test_post_accumulate_hook_may_take_the_gradient_away():
    linear, queue = nn.Linear(3, 3), WeightQueue()
    linear.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    with deferring(queue):
        linear(torch.ones(1, 3)).sum().backward()
    queue.run()
    assert linear.weight.grad is None


def test_double_backward_is_a_clear_error():
    linear, x = nn.Linear(3, 3), torch.ones(1, 3, requires_grad=True)
    with deferring(WeightQueue()):
        y = linear(x).exp().sum()
        with pytest.raises(RuntimeError, match=r"linear.*\(3, 3\).*double backward.*outside"):
            torch.autograd.grad(y, x, create_graph=True)


@pytest.mark.parametrize("name", [name for name, case in OP_CASES.items() if case.num_deferred])
def test_double_backward_of_any_op_is_a_clear_error(name):
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in OP_CASES[name].inputs()]
    with deferring(WeightQueue()):
        y = OP_CASES[name].build()(*inputs).sum()
        with pytest.raises(RuntimeError, match="no double backward while deferring: run this part"):
            y.backward(create_graph=True)


@pytest.mark.parametrize("way", ["hook", "retain_grad"])
def test_view_whose_gradient_somebody_watches_stays_in_b(way):
    weight, queue, seen = nn.Parameter(torch.eye(3)), WeightQueue(), []
    view = weight.t()
    view.register_hook(seen.append) if way == "hook" else view.retain_grad()
    with deferring(queue):
        (torch.ones(2, 3) @ view).sum().backward()
    assert len(queue) == 0
    gradient = seen[0] if way == "hook" else view.grad
    assert torch.equal(gradient, torch.full((3, 3), 2.0))


def test_gradient_asked_for_by_name_leaves_parameters_alone():
    linear, queue, x = nn.Linear(3, 3), WeightQueue(), torch.ones(1, 3, requires_grad=True)
    with deferring(queue):
        (dx,) = torch.autograd.grad(linear(x).sum(), x)
    assert torch.equal(dx[0], linear.weight.sum(0))
    assert len(queue) == 0


def test_no_gradient_for_the_output_means_none_for_parameters():
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            return None

    linear, queue = nn.Linear(3, 3), WeightQueue()
    with deferring(queue):
        Stop.apply(linear(torch.ones(1, 3))).sum().backward()
    queue.run()
    assert linear.weight.grad is None


def test_saved_input_written_between_f_and_b_is_an_error():
    linear, x = nn.Linear(3, 3), torch.ones(1, 3)
    with deferring(WeightQueue()):
        y = linear(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode])
def test_without_grad_nothing_is_caught(grad_mode):
    with deferring(WeightQueue()), grad_mode():
        assert not nn.Linear(3, 3)(torch.ones(1, 3)).requires_grad


def test_func_transforms_are_left_alone():
    linear, queue, x = nn.Linear(3, 3), WeightQueue(), torch.ones(2, 3)
    x_3d = torch.randn(2, 4, 3)

    def loss(weight):
        return F.linear(x, weight).sum()

    with deferring(queue):
        gradient = torch.func.grad(loss)(linear.weight)
        per_matrix = torch.func.vmap(linear)(x_3d)
        _, tangent = torch.func.jvp(linear, (x,), (x,))
    assert torch.equal(gradient, torch.full((3, 3), 2.0))
    torch.testing.assert_close(per_matrix, linear(x_3d))
    torch.testing.assert_close(tangent, x @ linear.weight.t())


def test_forward_mode_is_left_alone():
    linear, x = nn.Linear(3, 3), torch.ones(2, 3)
    with deferring(WeightQueue()), torch.autograd.forward_ad.dual_level():
        y = linear(torch.autograd.forward_ad.make_dual(x, x))
        tangent = torch.autograd.forward_ad.unpack_dual(y).tangent
    torch.testing.assert_close(tangent, x @ linear.weight.t())


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: F.linear(x[0], w),
        lambda x, w: F.linear(x, w[0]),
        lambda x, w: x[0] @ w,
        lambda x, w: torch.mm(input=x, mat2=w),
        lambda x, w: F.linear(x, w.tanh()),
        lambda x, w: F.linear(x, w[1:].t().t()),
        lambda x, w: x @ w.expand(2, 3, 3)[0],
        lambda x, w: w @ x[0],
        lambda x, w: x.expand(2, 3, 3) @ w[None],
        lambda x, w: torch.einsum("ij,kl->il", x, w),
        lambda x, w: torch.einsum("ii,ij->ij", x, w),
        lambda x, w: torch.einsum("i...,...k->ik", x, w),
        lambda x, w: torch.einsum("ij,jk->k", x, w),
        lambda x, w: torch.einsum("ij,ij->ij", x, w),
        lambda x, w: torch.einsum("ij,jk,kl->il", x, x, w),
        lambda x, w: F.conv1d(x, w[None]),
        lambda x, w: F.linear(x, w, w.sum(0)),
        lambda x, w: torch.addmm(x, x, w),
        lambda x, w: torch.addmm(x[0], x, w, alpha=2),
        lambda x, w: F.linear(x.to(torch.cfloat), nn.Parameter(w.detach().to(torch.cfloat))).abs(),
        lambda x, w: torch.mm(x.to_sparse(), w),
    ],
)
def test_call_that_no_handler_takes_stays_in_b(call):
    queue, weight = WeightQueue(), nn.Parameter(torch.randn(3, 3))
    with deferring(queue):
        call(torch.randn(3, 3), weight).sum().backward()
    assert len(queue) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: F.linear(input=x, weight=w, bias=None),
        lambda x, w: F.linear(w, w),
        lambda x, w: w @ w,
        lambda x, w: F.embedding(input=torch.tensor(1), weight=w),
    ],
)
def test_call_with_names_or_a_parameter_as_input_is_split(call):
    gradients = []
    for queue in (None, WeightQueue()):
        torch.manual_seed(3)
        x, weight = torch.randn(3, 3), nn.Parameter(torch.randn(3, 3))
        if queue is None:
            call(x, weight).exp().sum().backward()
        else:
            with deferring(queue):
                call(x, weight).exp().sum().backward()
            assert len(queue) == 1
            queue.run()
        gradients.append(weight.grad)
    torch.testing.assert_close(*gradients)


def test_wrong_shapes_raise_the_error_of_torch():
    with deferring(WeightQueue()), pytest.raises(RuntimeError, match="cannot be multiplied"):
        nn.Linear(3, 3)(torch.ones(2, 4))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_backward_outside_is_left_alone_while_another_thread_defers(use_reentrant):
    """A recomputation in this thread must not find the queue of the other one."""
    inside, leave = threading.Event(), threading.Event()
    queue = WeightQueue()

    def defer_for_a_while():
        with deferring(queue):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=defer_for_a_while)
    thread.start()
    inside.wait(30)
    try:
        linear, x = nn.Linear(3, 3), torch.ones(1, 3, requires_grad=True)
        checkpoint(linear, x, use_reentrant=use_reentrant).sum().backward()
    finally:
        leave.set()
        thread.join()
    assert len(queue) == 0
    assert torch.equal(linear.weight.grad, torch.ones(3, 3))
