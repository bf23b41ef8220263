"""The trait of ops whose output channels are linear in constants: weights and a bias."""

from __future__ import annotations

from abc import abstractmethod

from clrt.ir.op import Array
from clrt.ops.base import Op


class HasScalableWeights(Op):
    """Trait: input 1 are weights, input 2 is nothing or a bias, a number per channel (axis 1)."""

    @abstractmethod
    def factors(self, scale: Array, weights: tuple[int, ...]) -> Array:
        """What the weights are multiplied by so that each output channel is.

        Args:
            scale: A number per output channel.
            weights: The shape of the weights, with which the result broadcasts.
        """
