"""Does the ledger count the bytes that are alive, whoever holds them?"""

import torch

from zerobubble.autograd import WeightQueue, deferring
from zerobubble.runtime.ledger import Account, Ledger


def test_a_tensor_counts_until_its_last_holder_lets_go():
    book, tensor = Account(), torch.zeros(8)
    book.track([tensor])
    assert book.live_bytes() == 32
    view = tensor[:2]
    del tensor
    assert book.live_bytes() == 32
    del view
    assert book.live_bytes() == 0
    assert book.peak_bytes == 32


def test_a_tensor_that_only_a_graph_holds_counts():
    book = Account()
    leaf = torch.ones(4, requires_grad=True)
    saved = leaf * 2
    book.track([saved])
    output = saved.exp() * saved
    del saved
    assert book.live_bytes() == 16
    output.sum().backward()
    del output
    assert book.live_bytes() == 0


def test_views_of_one_storage_count_once():
    book, tensor = Account(), torch.zeros(8)
    book.track([tensor, tensor[2:], tensor.view(2, 4)])
    assert book.peak_bytes == book.live_bytes() == 32


def test_the_peak_stays_when_tensors_go():
    book = Account()
    first, second = torch.zeros(2), torch.zeros(4)
    book.track([first, second])
    del first
    third = torch.zeros(1)
    book.track([third])
    assert book.peak_bytes == 24
    assert book.live_bytes() == 20


def test_nothing_is_watched_while_off():
    book, tensor = Ledger(), torch.zeros(8, requires_grad=True)
    book.track_boundary([tensor])
    with book.watching(torch.nn.Identity(), None):
        output = tensor.exp()
    book.end_op()
    assert book.boundary.peak_bytes == book.activations.peak_bytes == 0
    assert book.activation_bytes == []
    del output


def test_activations_are_what_f_saves_but_for_parameters_batch_and_boundary_tensors():
    book = Ledger()
    book.is_on = True
    layer = torch.nn.Linear(4, 4)
    received, given = torch.ones(2, 4, requires_grad=True), torch.ones(2, 4)
    book.track_boundary([received])
    with book.watching(layer, {"x": given}):
        output = (layer(received) * given).exp()  # saves its input, given, weight, and the result
    book.end_op()
    assert book.activation_bytes == [2 * 4 * 4]
    output.sum().backward()
    assert torch.allclose(received.grad, output @ layer.weight)
    del output
    book.end_op()
    assert book.activation_bytes == [32, 0]
    assert book.boundary.peak_bytes == 32


def test_what_waits_for_w_counts_until_w_has_run():
    book, queue, layer = Ledger(), WeightQueue(), torch.nn.Linear(4, 3)
    book.is_on = True
    with book.watching(layer, None), deferring(queue):
        x = torch.ones(2, 4, requires_grad=True).exp()
        output = layer(x).sum()
    del x
    with deferring(queue):
        output.backward()
    del output
    book.end_op(queue)
    queue.run()
    book.end_op()
    assert book.activation_bytes == [2 * 4 * 4 + 4, 0]  # dy is one number, expanded
