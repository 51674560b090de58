"""What do the splits of all ops share? The way from an operand's gradient to the parameter's."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor
from torch.nn import Parameter

from zerobubble.autograd.operands import Source


class ParameterSplit(ABC):
    """The backward of one op whose trainable operands are parameters, or views of parameters.

    Args:
        op: its name, for errors and reports.
        weight_shape: of the weight, as the op takes it.
        sources: of the trainable operands, the weight first.
    """

    def __init__(self, op: str, weight_shape: Sequence[int], *sources: Source) -> None:
        self.op = op
        self.weight_shape = weight_shape
        self.parameters: tuple[Parameter, ...] = tuple(source.parameter for source in sources)
        self._sources = sources

    def __call__(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the parameters."""
        gradients = self.operand_gradients(x, dy)
        pairs = zip(self._sources, gradients, strict=True)
        return tuple(g if s.restore is None else s.restore(g) for s, g in pairs)

    @abstractmethod
    def operand_gradients(self, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        """Return one new gradient per trainable operand, of its shape."""

    @abstractmethod
    def input_gradient(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        """Return the gradient of x, of the shape of x."""

    def add_to(self, gradient: Tensor, x: Tensor, dy: Tensor) -> tuple[Tensor, ...] | None:
        """Add the first parameter's gradient within a GEMM and return the others'.

        None, and nothing added, where that cannot be done.
        """
        return None

    @abstractmethod
    def num_weight_flops(self, y_shape: Sequence[int]) -> int:
        """Count the operations of the GEMM or convolution in W, from the output's shape."""
