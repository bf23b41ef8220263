"""Upper bounds on predicted run times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clrt.kernels.spec import KernelSpec

from .planning import Planned
from .predict import Prediction, predict

DEVICES = "AMD Radeon RX 7900 XTX", "NVIDIA GeForce RTX 4090"


@dataclass(frozen=True)
class Aim:
    """The most that the launches of a model may take, but for what each takes by itself.

    Attributes:
        milliseconds: Bound on a run in ms; 0 if the bound is a multiple of the ideal device's time.
    """

    model: str
    milliseconds: float = 0.0
    times: float = 0.0

    def __str__(self) -> str:
        if self.milliseconds:
            return f"{self.milliseconds:g} ms"
        return f"{self.times:g} times *perfect*"

    def reached(self, found: Prediction) -> tuple[str, bool]:
        """Returns the prediction in the aim's terms, and whether it is within the bound."""
        working = found.likely - found.launching
        if self.milliseconds:
            return f"{1e3 * working:.3g} ms", 1e3 * working <= self.milliseconds
        return f"{working / found.perfect:.3g}", working <= self.times * found.perfect


AIMS = (
    Aim("MiniLM, 1 x 128", 0.5),
    Aim("ResNet-50, batch 1", 1.5),
    Aim("Product, 1 x 2048 x 2048", times=1.5),
    Aim("Llama of 1B in 4 bits, a token", times=1.5),
)


def aims_of(
    plans: Sequence[Planned], shares: Mapping[str, Mapping[KernelSpec, float]]
) -> Iterator[tuple[Aim, str, str, bool]]:
    """Yields each aim on each device: the predicted value, and whether the aim is met.

    Args:
        shares: Target -> fraction of a device's peak rate that kernels' main loops reach at most.
    """
    for aim in AIMS:
        for p in plans:
            if p.model == aim.model and p.profile.name in DEVICES and not p.error:
                yield aim, p.profile.name, *aim.reached(predict(p, shares[p.profile.target]))
