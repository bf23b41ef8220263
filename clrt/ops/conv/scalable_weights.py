"""Base class of ops whose output channels can be scaled through their weights and bias."""

from __future__ import annotations

from abc import abstractmethod

from clrt.ir.op import Array
from clrt.ops.base import Op


class HasScalableWeights(Op):
    """Op with weights as input 1 and an optional bias per output channel (axis 1) as input 2.

    Passes fold a scale and a shift per channel, which follow the op, into these constants.
    """

    @abstractmethod
    def factors(self, scale: Array, weights: tuple[int, ...]) -> Array:
        """Returns the scale of each output channel, reshaped to broadcast against the weights.

        Args:
            scale: Factor of each output channel, `[output channels]`.
            weights: Shape of the weights.
        """
