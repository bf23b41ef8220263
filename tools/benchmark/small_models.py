"""Makes the nets of `small_configs` with random weights, as ONNX; needs torch and transformers."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clrt.util.accuracy import max_difference

from .net_models import randomise
from .runtimes import Feeds, onnx_session
from .small_configs import NETS, OWN
from .small_net import SmallNet, draw_feeds

# Lowest opset of each exporter that needs no conversion.
_OPSETS = {False: 17, True: 18}
_MAX_ERROR = 1e-3


class ExportError(RuntimeError):
    """Every exporter failed, or wrote a net whose result on ONNX Runtime is not torch's."""


def make_small_net(name: str, target: Path) -> None:
    """Exports a net of `NETS`, with the same weights each time.

    Tries the tracing exporter, then torch.export's; both with dynamic axes, then with fixed ones.

    Args:
        target: The ONNX file; the inputs are written beside it as .npz.

    Raises:
        ExportError: All of them failed; the message has each error.
    """
    net = NETS[name]
    feeds = draw_feeds(net.feeds)
    arguments = tuple(torch.from_numpy(a) for a in feeds.values())
    part, reasons = target.with_suffix(".part"), []
    for is_dynamic in (True, False):
        for dynamo in (False, True):
            try:
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    module = _make_module(name, net)
                    expected = module(*arguments)
                    _export(module, net, arguments, part, dynamo, is_dynamic)
                used: dict[str, Any] = _check(part, feeds, expected.numpy())
            except Exception as error:  # exporters raise all kinds
                text = " ".join(str(error).split())[:200]
                reasons.append(f"{_label(dynamo, is_dynamic)}: {type(error).__name__}: {text}")
            else:
                np.savez(target.with_suffix(".npz"), **used)
                part.rename(target)
                return
    part.unlink(missing_ok=True)
    raise ExportError("; ".join(reasons))


def _label(dynamo: bool, is_dynamic: bool) -> str:
    exporter = "torch.export" if dynamo else "tracing"
    return f"{exporter}, {'dynamic' if is_dynamic else 'fixed'} axes"


def _make_module(name: str, net: SmallNet) -> nn.Module:
    torch.manual_seed(0)
    if name in OWN:
        made = globals()[net.kind](**net.config)
    else:
        import transformers

        kind = getattr(transformers, net.kind)
        config = kind.config_class(**net.config)
        config._attn_implementation = "eager"
        made = kind(config)
    inner = getattr(made, net.part) if net.part else made
    module = _First(inner, list(net.feeds)).eval()
    randomise(module)
    return module


class _First(nn.Module):
    """Takes a module's inputs in order, and returns its first output."""

    def __init__(self, inner: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.inner = inner
        self.names = names

    def forward(self, *arguments: Tensor) -> Tensor:
        found = self.inner(**dict(zip(self.names, arguments, strict=True)))
        output: Tensor = found if isinstance(found, Tensor) else found[0]
        return output


def _export(
    module: nn.Module,
    net: SmallNet,
    arguments: tuple[Tensor, ...],
    target: Path,
    dynamo: bool,
    is_dynamic: bool,
) -> None:
    axes = {n: dict(f.axes) for n, f in net.feeds.items() if f.axes} if is_dynamic else {}
    options: dict[str, Any] = {"dynamic_axes": axes} if axes else {}
    if dynamo:
        options = {"external_data": False, "verbose": False}
        if axes:
            dims = [{i: torch.export.Dim.DYNAMIC for i in axes.get(name, ())} for name in net.feeds]
            options["dynamic_shapes"] = {"arguments": tuple(dims)}
    torch.onnx.export(
        module,
        arguments,
        str(target),
        input_names=list(net.feeds),
        output_names=["output"],
        opset_version=_OPSETS[dynamo],
        dynamo=dynamo,
        **options,
    )


def _check(path: Path, feeds: Feeds, expected: NDArray[Any]) -> Feeds:
    """Compares ONNX Runtime's result with torch's; returns the inputs that the export has."""
    session = onnx_session(path)
    used = {i.name: feeds[i.name] for i in session.get_inputs()}
    (output,) = session.run(None, used)
    if not np.isfinite(expected).all():
        raise ValueError("the net's outputs are not finite")
    _, error = max_difference(output, expected)
    if error > _MAX_ERROR:
        raise ValueError(f"ONNX Runtime's result differs from torch's by {error:.1e}")
    return used


class Recurrent(nn.Module):
    """A beat tracker: recurrent layer, then a number per step."""

    def __init__(self, cell: str, features: int, states: int) -> None:
        super().__init__()
        self.cell = getattr(nn, cell)(features, states, batch_first=True)
        self.head = nn.Linear(states, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.cell(x)[0]).sigmoid()
        return found


class VoiceDetector(nn.Module):
    """Convolutions over 36 ms of samples, and a recurrent layer over their frames."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((1, 32, 64, 16), (32, 64, 3, 2), (64, 64, 3, 2), (64, 128, 3, 1))
        self.convolutions = nn.Sequential(
            *(
                nn.Sequential(nn.Conv1d(i, o, kernel, stride, kernel // 2), nn.ReLU())
                for i, o, kernel, stride in widths
            )
        )
        self.cell = nn.LSTM(128, 128, batch_first=True)
        self.head = nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        frames = self.convolutions(x[:, None])
        states, _ = self.cell(frames.transpose(1, 2))
        found: Tensor = self.head(states.mean(1)).sigmoid()
        return found


class KeywordNet(nn.Module):
    """Zhang et al. 2017, depthwise separable, small."""

    def __init__(self, width: int = 64, blocks: int = 4, words: int = 12) -> None:
        super().__init__()

        def conv(inputs: int, kernel: Any, **options: Any) -> nn.Module:
            layer = nn.Conv2d(inputs, width, kernel, bias=False, **options)
            return nn.Sequential(layer, nn.BatchNorm2d(width), nn.ReLU())

        stem = conv(1, (10, 4), stride=2, padding=(5, 1))
        steps = [
            nn.Sequential(conv(width, 3, padding=1, groups=width), conv(width, 1))
            for _ in range(blocks)
        ]
        self.body = nn.Sequential(stem, *steps)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x).mean((2, 3))).softmax(1)
        return found


class Gestures(nn.Module):
    """Twenty-one points of a hand to eight gestures."""

    def __init__(self) -> None:
        super().__init__()
        widths = (63, 128, 64, 32)
        steps = [step for i, o in pairwise(widths) for step in (nn.Linear(i, o), nn.ReLU())]
        self.body = nn.Sequential(*steps, nn.Linear(widths[-1], 8), nn.Softmax(1))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x)
        return found


class OneAdd(nn.Module):
    """Adds two tensors: the time of a run is its overhead alone."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y
