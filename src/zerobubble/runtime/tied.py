"""How do parameters that several stages share stay equal? Each stage holds a copy.

A tied parameter is a group of copies in different layers, named as in the whole model. Copies get
the value of the first one; after the backward each gets the sum of the gradients of all, added in
the order of the layers on every rank, so that the result does not depend on the partition. In
norms and clipping the group counts once.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobubble.errors import UsageError
from zerobubble.ir import Placement
from zerobubble.runtime.transport import LostRankError
from zerobubble.runtime.watch import watch


class TiedParameters:
    """The groups of tied parameters of a model and this rank's copies.

    Args:
        groups: names ``layer number.parameter name`` of the copies, in the order of the layers.
        parameters: this rank's parameters by name.
        stage_of_layer: which stage holds which layer.
        placement: which rank holds which stage.
        rank: this rank.

    Raises:
        UsageError: a name is unknown, or a group has fewer than two names.
    """

    def __init__(
        self,
        groups: Iterable[Sequence[str]],
        parameters: Mapping[str, nn.Parameter],
        stage_of_layer: Sequence[int],
        placement: Placement,
        rank: int,
    ) -> None:
        self.rank = rank
        self.groups: list[list[tuple[int, nn.Parameter | None]]] = []
        self.repeated: set[nn.Parameter] = set()
        groups = [list(names) for names in groups]
        seen: set[str] = set()
        for names in groups:
            for name in seen & set(names):
                raise UsageError(
                    f"tied parameter {name!r} is in two groups: put all its copies in one"
                )
            seen |= set(names)
            copies = [_locate(name, parameters, stage_of_layer, placement, rank) for name in names]
            if len(copies) < 2:
                raise UsageError(f"tied parameters {list(names)}: name at least two")
            self.groups.append(copies)
            self.repeated |= {p for _, p in copies[1:] if p is not None and p is not copies[0][1]}

    @torch.no_grad()
    def copy_values(self) -> None:
        """Give every copy the value of the first one.

        Raises:
            UsageError: copies differ in shape or dtype, or only some of them are frozen.
        """
        for copies in self.groups:
            self._must_be_alike(copies)
            values = [None if p is None else p.detach() for _, p in copies]
            first = self._exchange(copies, values)[0]
            for _, parameter in copies:
                if parameter is not None and first is not None:
                    parameter.copy_(first)

    @torch.no_grad()
    def sum_gradients(self, among: Container[nn.Parameter]) -> None:
        """Give every copy, of those groups that are among some parameters, the sum of all."""
        for copies in self.groups:
            if not any(p in among for _, p in copies if p is not None):
                continue
            gradients = [_gradient(copies, index) for index in range(len(copies))]
            everything = [g for g in self._exchange(copies, gradients) if g is not None]
            for _, parameter in copies:
                if parameter is not None and parameter.requires_grad:
                    total = everything[0].clone()
                    for gradient in everything[1:]:
                        total.add_(gradient)
                    parameter.grad = total

    @torch.no_grad()
    def must_be_claimed_by_all(self, owned: Container[nn.Parameter]) -> None:
        """Refuse an optimizer that steps only some copies of a tied parameter; all ranks call this.

        Raises:
            UsageError: this is so; on every rank that holds a copy.
        """
        for copies in self.groups:
            claims = [
                None if p is None else p.new_tensor([p in owned], dtype=torch.int64)
                for _, p in copies
            ]
            known = [bool(c) for c in self._exchange(copies, claims) if c is not None]
            if any(known) and not all(known):
                shape = next(list(p.shape) for _, p in copies if p is not None)
                raise UsageError(
                    f"an optimizer steps only some of the copies of a tied parameter of shape "
                    f"{shape}: give it all of them, on every rank"
                )

    def _must_be_alike(self, copies: list[tuple[int, nn.Parameter | None]]) -> None:
        """Refuse copies that cannot stay equal."""
        forms = [
            None if p is None else p.new_tensor([_form(p), p.requires_grad], dtype=torch.int64)
            for _, p in copies
        ]
        known = [form.tolist() for form in self._exchange(copies, forms) if form is not None]
        if any(form != known[0] for form in known):
            shape = next(list(p.shape) for _, p in copies if p is not None)
            raise UsageError(
                f"the copies of a tied parameter of shape {shape} differ in shape or dtype, or "
                "only some of them are frozen: make them alike"
            )

    def _exchange(
        self, copies: list[tuple[int, nn.Parameter | None]], values: list[Tensor | None]
    ) -> list[Tensor | None]:
        """Give every rank of a group the values of all its copies, in order."""
        mine = next((value for value in values if value is not None), None)
        if mine is None:
            return values
        peers = {holder for holder, _ in copies} - {self.rank}
        values = [torch.empty_like(mine) if v is None else v.contiguous() for v in values]
        transfers = []
        for index, (holder, _) in enumerate(copies):
            value = values[index]
            assert value is not None
            if holder != self.rank:
                transfers.append(dist.P2POp(dist.irecv, value, holder, tag=index))
            else:
                transfers += [dist.P2POp(dist.isend, value, peer, tag=index) for peer in peers]
        before = watch.wait()
        works = dist.batch_isend_irecv(transfers) if transfers else []
        for work, transfer in zip(works, transfers, strict=False):  # NCCL has one work for all
            try:
                work.wait()
            except RuntimeError as error:
                raise LostRankError(transfer.peer, error) from error
        watch.resume(before)
        return values


def _gradient(copies: list[tuple[int, nn.Parameter | None]], index: int) -> Tensor | None:
    """Give the gradient of a copy here, once where one Parameter object stands for several."""
    parameter = copies[index][1]
    if parameter is None:
        return None
    is_first = all(earlier is not parameter for _, earlier in copies[:index])
    if not is_first or parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad


def refuse_shared(
    layers: Sequence[object], layers_of_stage: Sequence[Iterable[int]], placement: Placement
) -> None:
    """Refuse a Parameter object that layers on different ranks share.

    Raises:
        UsageError: there is one; the message names its copies as ``tied`` wants them.
    """
    owners: dict[nn.Parameter, tuple[int, str, int]] = {}
    for stage, numbers in enumerate(layers_of_stage):
        rank = placement.stage_to_rank[stage]
        for number in numbers:
            layer = layers[number]
            for name, parameter in layer.named_parameters() if isinstance(layer, nn.Module) else ():
                other, other_name, other_rank = owners.setdefault(parameter, (number, name, rank))
                if other_rank != rank:
                    names = f"('{other}.{other_name}', '{number}.{name}')"
                    raise UsageError(
                        f"layers {other} and {number} share a parameter but are on ranks "
                        f"{other_rank} and {rank}: give each its own and pass tied=[{names}]"
                    )


def _form(parameter: nn.Parameter) -> int:
    return crc32(f"{list(parameter.shape)} {parameter.dtype}".encode())


def _locate(
    name: str,
    parameters: Mapping[str, nn.Parameter],
    stage_of_layer: Sequence[int],
    placement: Placement,
    rank: int,
) -> tuple[int, nn.Parameter | None]:
    """Find the rank that holds a parameter, and the parameter if it is this one."""
    number, _ = layer_of_tied(name, len(stage_of_layer))
    holder = placement.stage_to_rank[stage_of_layer[number]]
    if holder == rank and name not in parameters:
        of_layer = [known for known in parameters if known.startswith(f"{number}.")]
        raise UsageError(f"tied parameter {name!r} does not exist; layer {number} has {of_layer}")
    return holder, parameters.get(name)


def layer_of_tied(name: str, num_layers: int) -> tuple[int, str]:
    """Split the name of a tied parameter into the number of its layer and its name there.

    Raises:
        UsageError: it is no such name, or there is no such layer.

    >>> layer_of_tied("2.head.weight", num_layers=3)
    (2, 'head.weight')
    """
    number, _, rest = name.partition(".") if isinstance(name, str) else ("", "", "")
    is_short = number.isdecimal() and len(number) <= len(str(num_layers))
    if not is_short or int(number) >= num_layers or not rest:
        raise UsageError(
            f"tied parameter {name!r}: write layer number.parameter name, with a layer from 0 to "
            f"{num_layers - 1}"
        )
    return int(number), rest
