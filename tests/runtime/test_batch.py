"""Does every microbatch get its own samples, and is what cannot be shared refused?"""

import pytest
import torch

from zerobubble import UsageError, Whole
from zerobubble.runtime.batch import (
    copy_aligned,
    count_samples,
    share_samples,
    signature,
    split_batch,
    take_batch,
)


@pytest.mark.parametrize(("n", "m"), [(6, 3), (7, 3), (8, 3), (3, 3), (1, 1)])
def test_samples_are_shared_as_torch_does_it(n, m):
    parts = [len(part) for part in torch.arange(n).tensor_split(m)]
    assert list(share_samples(n, m)) == parts


def test_fewer_samples_than_microbatches_are_refused_with_what_to_do():
    with pytest.raises(UsageError) as raised:
        share_samples(2, 3)
    assert str(raised.value) == (
        "a batch with 2 samples cannot be split into 3 microbatches: give at least 3 samples, or "
        "build the schedule for fewer microbatches"
    )


def test_every_tensor_of_a_batch_is_split_in_order():
    x, labels, mask = torch.arange(10).view(5, 2), torch.arange(5), torch.ones(3, 3)
    batch = {"x": x, "labels": (labels, None), "flag": True, "mask": Whole({"m": mask})}
    parts = split_batch(batch, (2, 2, 1), "the batch")
    assert len(parts) == 3
    assert all(part["flag"] is True and part["labels"][1] is None for part in parts)
    assert all(part["mask"]["m"] is mask for part in parts)
    assert torch.equal(torch.cat([part["x"] for part in parts]), x)
    assert [part["labels"][0].tolist() for part in parts] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("shape", [(), (0, 2), (5, 2), (2,)])
def test_a_tensor_of_another_number_of_samples_is_refused_with_its_shape(shape):
    with pytest.raises(UsageError) as raised:
        split_batch((torch.ones(3, 1), torch.ones(shape)), (1, 1, 1), "keyword mask")
    assert str(raised.value) == (
        f"keyword mask has a tensor of shape {list(shape)}, but the batch has 3 samples: make that "
        "its first dimension, or wrap the tensor in zerobubble.Whole if every microbatch needs all "
        "of it"
    )


def test_inputs_that_do_not_tell_their_samples_are_refused():
    with pytest.raises(UsageError, match=r"shapes \[4, 2\] and \[3\]: give all the same"):
        count_samples({"x": torch.ones(4, 2), "y": torch.ones(3)})
    with pytest.raises(UsageError, match=r"tensors of shapes \[4\] and \[\]: give all the same"):
        count_samples([torch.ones(4), torch.tensor(1.0)])
    with pytest.raises(UsageError, match="the batch x holds no tensor: give one whose first"):
        count_samples((1, Whole(torch.ones(3))))
    assert count_samples((torch.ones(4, 2), Whole(torch.ones(3)))) == 4


def test_other_objects_go_whole_only():
    with pytest.raises(UsageError, match=r"holds a set: give .* wrap anything else in zero"):
        split_batch({1, 2}, (1, 1), "keyword mask")
    assert split_batch(Whole({1, 2}), (1, 1), "keyword mask") == [{1, 2}, {1, 2}]


def test_a_signature_tells_shapes_and_constants_but_not_the_number_of_samples():
    def of(*shape, dtype=torch.float32, flag=True):
        return signature({"x": torch.ones(shape, dtype=dtype), "flag": flag})

    assert of(2, 3) == of(5, 3)
    different = [of(2, 4), of(2, 3, 1), of(2, 3, dtype=torch.int64), of(2, 3, flag=False)]
    assert of(2, 3) not in different
    assert signature(Whole(torch.ones(2))) == signature(Whole(torch.zeros(2)))


def test_a_copy_shares_nothing_with_the_batch_and_one_tensor_among_microbatches():
    x, mask = torch.arange(3.0), Whole(torch.ones(2))
    batch = take_batch(x, None, {"mask": mask}, (2, 1), 0, torch.device("cpu"))
    copy = batch.copy()
    batch.inputs[0].zero_()
    mask.value.zero_()
    assert [part.tolist() for part in copy.inputs] == [[0, 1], [2]]
    assert [part["mask"].tolist() for part in copy.keywords] == [[1, 1], [1, 1]]
    assert copy.keywords[0]["mask"] is copy.keywords[1]["mask"]


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(90.0).view(30, 3)[1:4],
        torch.arange(90.0).view(30, 3)[5:9, 1:].t(),
        torch.arange(30.0)[7].expand(4, 2),
        torch.arange(30.0)[3:4].expand(5, 1),
        torch.zeros(0, 3),
        torch.tensor(2.0),
        torch.arange(30, dtype=torch.uint8)[5:9],
        torch.eye(3).to_sparse(),
    ],
    ids=["rows", "strided", "expanded", "one", "empty", "scalar", "bytes", "sparse"],
)
def test_a_copy_has_the_values_and_the_alignment_of_the_original(view):
    copied = copy_aligned(view)
    assert torch.equal(copied.to_dense(), view.to_dense())
    if view.layout is torch.strided:
        assert copied.stride() == view.stride()
        if view.numel():
            assert (copied.data_ptr() - view.data_ptr()) % 64 == 0
            assert not torch._C._is_alias_of(copied, view)
