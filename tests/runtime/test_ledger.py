"""Does the ledger count the bytes that are alive, whoever holds them?"""

import torch

from zerobubble.runtime.ledger import Ledger


def ledger():
    made = Ledger()
    made.is_on = True
    return made


def test_a_tensor_counts_until_its_last_holder_lets_go():
    book, tensor = ledger(), torch.zeros(8)
    book.track([tensor])
    assert book.live_bytes() == 32
    view = tensor[:2]
    del tensor
    assert book.live_bytes() == 32
    del view
    assert book.live_bytes() == 0
    assert book.peak_bytes == 32


def test_a_tensor_that_only_a_graph_holds_counts():
    book = ledger()
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
    book, tensor = ledger(), torch.zeros(8)
    book.track([tensor, tensor[2:], tensor.view(2, 4)])
    assert book.peak_bytes == book.live_bytes() == 32


def test_the_peak_stays_when_tensors_go():
    book = ledger()
    first, second = torch.zeros(2), torch.zeros(4)
    book.track([first, second])
    del first
    third = torch.zeros(1)
    book.track([third])
    assert book.peak_bytes == 24
    assert book.live_bytes() == 20


def test_nothing_is_watched_while_off():
    book, tensor = Ledger(), torch.zeros(8)
    book.track([tensor])
    assert book.live_bytes() == book.peak_bytes == 0
