"""Do host pool and file keep bytes, within their limit, and say what is wrong? No graph needed."""

import errno
import os
import socket
import subprocess
import threading
from concurrent import futures

import pytest
import torch

from tests.runtime.test_offload import CPU, STAND_INS
from zerobubble.runtime.offload import OffloadError, streams
from zerobubble.runtime.offload.copying import ThreadCopies
from zerobubble.runtime.offload.file import FileStore
from zerobubble.runtime.offload.pool import Buffer, HostPool
from zerobubble.runtime.offload.store import VerifiedStore, size_class
from zerobubble.runtime.offload.streams import StreamCopies


def test_the_pool_uses_buffers_again_by_size_class():
    pool = HostPool()
    first = pool.take(1000)
    assert (first.tensor.numel(), pool.held_bytes, pool.lent_bytes) == (1024, 1024, 1024)
    pool.give_back(first)
    assert pool.take(1024) is first
    assert pool.take(1000) is not first
    assert pool.peak_bytes == 2048


@pytest.mark.parametrize("num_bytes", [1, 7, 16, 17, 1000, 4097, 10**6, 10**9 + 7])
def test_a_size_class_wastes_at_most_an_eighth(num_bytes):
    assert num_bytes <= size_class(num_bytes) <= num_bytes * 9 / 8 + 1
    assert size_class(size_class(num_bytes)) == size_class(num_bytes)


def test_a_limit_of_the_pool_counts_what_is_free_and_lets_it_go_first():
    pool = HostPool(limit_bytes=3000)
    pool.give_back(pool.take(2048))
    lent = pool.take(1024)
    assert pool.held_bytes == 1024 + 2048 - 2048
    with pytest.raises(OffloadError, match=r"2048 bytes do not fit .* holds 1024 of at most 3000"):
        pool.take(2048)
    pool.give_back(lent)
    pool.take(2048)


def test_pinned_memory_is_counted_as_torch_takes_it(monkeypatch):
    monkeypatch.setattr(Buffer, "__init__", _pageable)
    pool = HostPool(limit_bytes=4096, is_pinned=True)
    assert [pool.take(n).tensor.numel() for n in (1, 8, 1025)] == [1, 8, 2048]
    with pytest.raises(OffloadError, match=r"2048 bytes do not fit .* holds 2057 of at most 4096"):
        pool.take(1100)


def _pageable(self, size, is_pinned):
    assert is_pinned
    self.tensor, self.num_bytes, self.busy_until = torch.empty(size, dtype=torch.uint8), size, None


@pytest.mark.parametrize("store", ["file"], indirect=True)
def test_a_limit_waits_for_staging_buffers_that_are_being_written(store, monkeypatch):
    for name, stand_in in STAND_INS.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    is_waited_for, put = threading.Event(), store.put
    monkeypatch.setattr(store, "put", lambda source: (is_waited_for.wait(30), put(source))[1])
    waits = []

    def wait(writes):
        waits.append(len(writes))
        is_waited_for.set()
        return futures.wait(writes)

    monkeypatch.setattr(streams, "wait", wait)
    pool = HostPool(limit_bytes=1024)
    copies = StreamCopies(CPU, pool, store)
    places = [copies.out([torch.full((1000,), i, dtype=torch.uint8)]).result() for i in (0, 1)]
    assert waits == [1]
    for i in (0, 1):
        into = torch.empty(1000, dtype=torch.uint8)
        copies.back(places[i], [into]).result()
        assert set(into.tolist()) == {i}
    copies.close()
    assert pool.peak_bytes == 1024


def test_a_failed_put_frees_what_came_before():
    pool = HostPool(limit_bytes=100)
    copy = ThreadCopies(pool).out([torch.ones(n, dtype=torch.uint8) for n in (64, 64)])
    with pytest.raises(OffloadError):
        copy.result()
    assert pool.lent_bytes == 0


def test_a_file_is_named_after_its_rank_used_again_and_removed(tmp_path):
    store = FileStore(tmp_path, rank=3)
    (path,) = tmp_path.iterdir()
    assert f"-rank3-pid{os.getpid()}-" in path.name
    data = torch.arange(100, dtype=torch.uint8)
    places = [store.put(data), store.put(data + 1)]
    store.free(places[0])
    places[0] = store.put(data + 2)
    assert store.num_bytes == 2 * size_class(100)
    back = torch.empty(2, 100, dtype=torch.uint8)
    for place, into in zip(places, back, strict=True):
        store.get(place, into)
    assert torch.equal(back, torch.stack([data + 2, data + 1]))
    del store
    assert not path.exists()


def test_a_file_of_a_killed_process_goes_with_the_next_one(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    name = f"zerobubble-offload-{socket.gethostname()}-rank0-pid{{}}-x"
    paths = [tmp_path / name.format(pid) for pid in (ended.pid, os.getpid())]
    for path in paths:
        path.touch()
    store = FileStore(tmp_path, rank=0)
    assert set(tmp_path.iterdir()) == {paths[1], store.path}


def test_a_full_disk_names_the_bytes_the_file_and_the_fix(tmp_path, monkeypatch):
    store = FileStore(tmp_path, rank=0)
    monkeypatch.setattr(os, "pwrite", _no_space)
    with pytest.raises(OffloadError, match=f"cannot write 9 bytes to {tmp_path}.*No space left on"):
        store.put(torch.ones(9, dtype=torch.uint8))


def _no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_is_cut_short(tmp_path):
    store = FileStore(tmp_path, rank=0)
    place = store.put(torch.ones(9, dtype=torch.uint8))
    store.path.write_bytes(b"")
    with pytest.raises(OffloadError, match=r"cannot read 9 bytes .* ends too early"):
        store.get(place, torch.empty(9, dtype=torch.uint8))


def test_a_checksum_finds_one_bit(store):
    verified = VerifiedStore(store)
    data = torch.randint(256, (1000,), dtype=torch.uint8)
    place = verified.put(data)
    if isinstance(store, HostPool):
        place.place.tensor[500] ^= 4
        where = "the host pool"
    else:
        content = bytearray(store.path.read_bytes())
        content[500] ^= 4
        store.path.write_bytes(content)
        where = str(store.path)
    with pytest.raises(OffloadError, match=f"1000 .* came back changed from {where}"):
        verified.get(place, torch.empty_like(data))
