"""What is moved, where to, and does it come back as it was? One parcel without a pipeline."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from zerobubble.autograd import WeightQueue, deferring
from zerobubble.errors import UsageError
from zerobubble.runtime.ledger import Account, Ledger
from zerobubble.runtime.offload import Offload, Offloading
from zerobubble.runtime.offload.copying import ThreadCopies
from zerobubble.runtime.offload.parcel import Parcel
from zerobubble.runtime.offload.pool import HostPool
from zerobubble.runtime.offload.shared import SharedStorages
from zerobubble.runtime.offload.store import VerifiedStore, bytes_of, size_class
from zerobubble.runtime.offload.streams import StreamCopies
from zerobubble.runtime.partition import StageModule
from zerobubble.runtime.stage import Stage

CPU = torch.device("cpu")


@pytest.fixture(params=["threads", "streams", "streams-and-threads"])
def copies(request, store, monkeypatch):
    """The engines of a CPU, and those of a CUDA device with streams that do all at once."""
    if request.param == "threads":
        found = ThreadCopies(VerifiedStore(store))
    else:
        for name, stand_in in STAND_INS.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        to_store = request.param == "streams-and-threads"
        found = StreamCopies(CPU, HostPool(), VerifiedStore(store) if to_store else None)
    yield found
    found.close()


class Stream:
    def __init__(self, device=None):
        pass

    def wait_event(self, event):
        assert event.is_recorded

    def synchronize(self):
        pass


class Event(Stream):
    is_recorded = False

    def record(self, stream):
        self.is_recorded = True


STAND_INS = {
    "Stream": Stream,
    "Event": Event,
    "current_stream": Stream,
    "stream": nullcontext,
    "set_device": Stream,
}


class Saves(torch.autograd.Function):
    """Saves what it is told to, and notes what comes back."""

    @staticmethod
    def forward(ctx, x, tensors, found):
        ctx.save_for_backward(*tensors)
        ctx.found = found
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        ctx.found.extend(ctx.saved_tensors)
        return dy, None, None


def there_and_back(copies, tensors, given=(), smallest_bytes=1, between=lambda: None):
    """Save tensors in a graph, let it leave and come back; return (parcel, what B finds)."""
    found, parcel = [], Parcel(copies, given, smallest_bytes)
    x = torch.ones((), requires_grad=True)
    with saved_tensors_hooks(parcel.pack, parcel.unpack):
        y = Saves.apply(x, tensors, found)
    parcel.send()
    between()
    parcel.drop()
    parcel.fetch()
    parcel.arrive()
    y.backward()
    return parcel, found


def test_tensors_come_back_with_their_bits_and_strides(copies):
    whole = torch.randn(6, 8)
    tensors = [
        whole, whole.t(), whole[1:3, ::2], whole[2].expand(3, 8), torch.randn(3).bfloat16(),
        torch.arange(5) > 2, torch.tensor(float("nan")), torch.randn(2, 2, dtype=torch.complex64),
    ]  # fmt: skip
    expected = [tensor.clone() for tensor in tensors]
    parcel, found = there_and_back(copies, tensors)
    assert parcel.moved_bytes == 6 * 8 * 4 + 3 * 2 + 5 + 4 + 4 * 8, "each storage once"
    for now, tensor, value in zip(found, tensors, expected, strict=True):
        assert now.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
        assert (now.shape, now.stride()) == (tensor.shape, tensor.stride())
        assert (now.dtype, now.storage_offset()) == (tensor.dtype, tensor.storage_offset())
        assert torch.equal(now.nan_to_num(7), value.nan_to_num(7))
    assert found[0].untyped_storage()._cdata == found[1].untyped_storage()._cdata


def test_device_memory_goes_at_o_and_is_taken_again_at_l(store):
    parcel, account = Parcel(ThreadCopies(store), ()), Account()
    x = torch.ones(100, requires_grad=True)
    with saved_tensors_hooks(parcel.pack, parcel.unpack):
        y = (x * 2).exp().sum()
    account.track(saved._saved_result for saved in [y.grad_fn.next_functions[0][0]])
    assert account.live_bytes() == 400
    parcel.send()
    assert account.live_bytes() == 400
    parcel.drop()
    assert account.live_bytes() == 0
    account.track(parcel.fetch())
    assert account.live_bytes() == 400
    parcel.arrive()
    del parcel
    y.backward()
    assert account.live_bytes() == 0, "memory goes as the backward proceeds"
    assert torch.equal(x.grad, 2 * (x.detach() * 2).exp())


def test_what_waits_for_w_is_what_was_loaded():
    ledger, queue, layer = Ledger(), WeightQueue(), nn.Linear(4, 3)
    ledger.is_on = True
    offloading = Offloading(Offload(smallest_bytes=1), CPU, rank=0)
    parcel = offloading.parcel(layer.parameters())
    with ledger.watching(layer, None, parcel), deferring(queue):
        output = layer(torch.ones(2, 4, requires_grad=True).exp()).sum()
    parcel.send()
    ledger.end_op()
    parcel.drop()
    ledger.end_op()
    ledger.track_activations(parcel.fetch())
    ledger.end_op()
    parcel.arrive()
    del parcel
    with deferring(queue):
        output.backward()
    del output
    ledger.end_op(queue)
    queue.run()
    ledger.end_op()
    assert ledger.activation_bytes == [32, 0, 32, 32 + 4, 0]


def test_what_others_hold_and_what_is_small_or_misaligned_stays(copies):
    given, small = torch.randn(64), torch.randn(8)
    misaligned = torch.frombuffer(bytearray(1000), dtype=torch.uint8, offset=0)
    if misaligned.untyped_storage().data_ptr() % 64 == 0:
        misaligned = torch.frombuffer(bytearray(1000), dtype=torch.uint8, offset=1)
    moved = torch.randn(64)
    tensors = [given[3:], small, misaligned, moved]
    parcel, found = there_and_back(copies, tensors, [given], smallest_bytes=256)
    assert parcel.moved_bytes == 256
    pointers = [(a.data_ptr(), b.data_ptr()) for a, b in zip(found, tensors, strict=True)]
    assert [a == b for a, b in pointers] == [True, True, True, False]


def test_what_lies_on_the_host_of_a_cuda_device_stays_there(monkeypatch):
    for name, stand_in in STAND_INS.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    copies, tensor = StreamCopies(torch.device("cuda", 0), HostPool()), torch.randn(64)
    parcel, (found,) = there_and_back(copies, [tensor])
    assert (parcel.moved_bytes, found.data_ptr()) == (0, tensor.data_ptr())


@pytest.mark.parametrize("order", ["at once", "in turn"])
def test_what_several_graphs_save_stays_once_that_is_known(copies, order):
    shared, mask, found = SharedStorages(), torch.randn(64), []
    parcels = [Parcel(copies, (), shared=shared) for _ in range(3)]
    outputs = []
    for parcel in parcels:
        with saved_tensors_hooks(parcel.pack, parcel.unpack):
            x = torch.ones((), requires_grad=True)
            outputs.append(Saves.apply(x, [mask, torch.randn(32)], found))
        parcel.send()
        if order == "in turn":
            parcel.drop()
    for parcel, output in zip(parcels, outputs, strict=True):
        if order == "at once":
            parcel.drop()
        parcel.fetch()
        parcel.arrive()
        output.backward()
    num_moved = 1 if order == "in turn" else 0
    assert [p.moved_bytes for p in parcels] == [128 + 256 * num_moved, 128, 128]
    stayed = [tensor.data_ptr() == mask.data_ptr() for tensor in found[::2]]
    assert stayed == [not num_moved, True, True]
    assert all(torch.equal(tensor, mask) for tensor in found[::2])
    if isinstance(copies, StreamCopies):
        assert copies._pool.lent_bytes == 0


@pytest.mark.parametrize("smallest_bytes", [1, 10**6], ids=["moved", "kept"])
def test_a_change_in_place_is_refused_as_by_autograd(copies, smallest_bytes):
    tensor = torch.ones(10)
    with pytest.raises(RuntimeError, match=r"\[10\].*modified by an inplace operation"):
        there_and_back(copies, [tensor], (), smallest_bytes, between=lambda: tensor.add_(1))
    assert len(there_and_back(copies, [tensor])[1]) == 1, "changed before it was saved"


def test_a_change_in_place_during_a_copy_is_not_blamed_on_the_disk(store, monkeypatch):
    tensor, put = torch.ones(10), store.put
    monkeypatch.setattr(store, "put", lambda source: (put(source), tensor.add_(1))[0])
    with pytest.raises(RuntimeError, match=r"\[10\].*modified by an inplace operation"):
        there_and_back(ThreadCopies(VerifiedStore(store)), [tensor])


def test_a_graph_that_has_gone_is_not_moved(copies):
    parcel = Parcel(copies, ())
    with saved_tensors_hooks(parcel.pack, parcel.unpack):
        torch.ones(10, requires_grad=True).exp()
    parcel.send()
    assert parcel.moved_bytes == 0


def test_a_stage_that_is_reset_forgets_what_is_away():
    offloading = Offloading(Offload(smallest_bytes=1), CPU, rank=0)
    stage = Stage(0, StageModule({0: nn.Linear(4, 4), 1: nn.Tanh()}), offloading=offloading)
    stage.offloaded = frozenset([0, 1])
    stage.begin([2, 2], [{}, {}])
    stage.give_batch([torch.ones(2, 4), torch.ones(2, 4)])
    stage.forward(0)
    stage.forward(1)
    stage.offload(0)
    assert offloading.pool.lent_bytes >= size_class(32)
    stage.reset()
    assert offloading.pool.lent_bytes == 0


@pytest.mark.parametrize("copies", ["threads", "streams"], indirect=True)
@pytest.mark.parametrize("store", ["pool"], indirect=True)
def test_an_abandoned_parcel_gives_its_memory_back(copies, store):
    pool = store if isinstance(copies, ThreadCopies) else copies._pool
    for ops in ([], ["drop"], ["drop", "fetch"]):
        parcel = Parcel(copies, ())
        with saved_tensors_hooks(parcel.pack, parcel.unpack):
            y = torch.ones(10, requires_grad=True).exp()
        parcel.send()
        for op in ops:
            getattr(parcel, op)()
        parcel.abandon()
        assert pool.lent_bytes == 0
        del y
    assert pool.peak_bytes == pool.held_bytes == size_class(40)


@pytest.mark.parametrize("name", ["host_memory", "smallest_bytes"])
@pytest.mark.parametrize("value", [-1, "8", 1.5, float("nan"), True], ids=str)
def test_what_is_no_size_is_refused(name, value):
    with pytest.raises(UsageError) as refusal:
        Offload(**{name: value})
    message = f"{name} must be a whole number of bytes, at least 0, not {value!r}"
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"directory": ""}, "directory must be the path of a folder, or None for none, not ''"),
        ({"directory": 3}, "directory must be the path of a folder, or None for none, not 3"),
        ({"verify": "no"}, "verify must be True or False, not 'no'"),
        (
            {"smallest_bytes": None},
            "smallest_bytes must be a whole number of bytes, at least 0, not None",
        ),
    ],
)
def test_other_wrong_settings(settings, message):
    with pytest.raises(UsageError) as refusal:
        Offload(**settings)
    assert str(refusal.value) == message


def test_bytes_of_a_storage_are_not_copied():
    tensor = torch.ones(3)
    bytes_of(tensor.untyped_storage()).zero_()
    assert tensor.tolist() == [0, 0, 0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", [{}, {"verify": True}, {"directory": True}])
def test_a_cuda_device_moves_on_streams_beside_the_compute(settings, tmp_path):
    device = torch.device("cuda", 0)
    if "directory" in settings:
        settings = {"directory": tmp_path}
    offloading = Offloading(Offload(smallest_bytes=1, **settings), device, rank=0)
    generator = torch.Generator(device).manual_seed(0)
    tensors = [torch.randn(2**20, device=device, generator=generator) for _ in range(4)]
    expected = [tensor.clone() for tensor in tensors]
    before = torch.cuda.memory_allocated()
    parcels = [offloading.parcel(()) for _ in tensors]
    saved = [parcel.pack(tensor) for parcel, tensor in zip(parcels, tensors, strict=True)]
    for parcel in parcels:
        parcel.send()
    tensors.clear()
    for parcel in parcels:
        parcel.drop()
    assert torch.cuda.memory_allocated() == before - 4 * 2**22
    spoilt = [torch.full((2**20,), 7.0, device=device) for _ in range(4)]
    for parcel in parcels:
        parcel.fetch()
    del spoilt
    for parcel, each, value in zip(parcels, saved, expected, strict=True):
        parcel.arrive()
        assert torch.equal(parcel.unpack(each), value)
    offloading.close()
