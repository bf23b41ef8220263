"""Known nets at their real geometries with random weights, as ONNX; nothing is downloaded.

transformers and diffusers build most of them; the extra `bench-nets` brings both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_OPSET = 17
_SPREAD = 0.1


def make_net(name: str, batch: int, target: Path) -> None:
    """Writes a net of `NETS` for one batch, its weights the same each time.

    Args:
        target: The ONNX file.
    """
    torch.manual_seed(0)
    net = NETS[name]
    module = _Tuple(net.make()).eval()
    randomise(module)
    inputs = torch.randn(batch, *net.shape)
    with torch.no_grad():
        torch.onnx.export(
            module, (inputs,), str(target), input_names=["x"], opset_version=_OPSET, dynamo=False
        )


def list_nets() -> list[tuple[str, tuple[int, ...]]]:
    """Names, and the shapes of inputs that are measured, the batch first."""
    return [(name, (b, *net.shape)) for name, net in NETS.items() for b in net.batches]


class _Tuple(nn.Module):
    """A module whose output is tensors, and no record of a library."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        found = self.inner(x)
        return found if isinstance(found, (Tensor, tuple)) else found.to_tuple()


def randomise(module: nn.Module) -> None:
    """Spreads what libraries start at a constant: biases, norms, layer scales."""
    tensors = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    with torch.no_grad():
        for tensor in tensors:
            if tensor.numel() > 1 and tensor.min() == tensor.max():
                tensor += _SPREAD * torch.randn_like(tensor)


@dataclass(frozen=True)
class Net:
    """How a net is made, and the shape of one of its inputs, without the batch."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batches: Sequence[int] = (1,)


def _transformers(kind: str, **config: Any) -> nn.Module:
    """A model of transformers, by its class and the fields of its configuration."""
    import transformers

    model = getattr(transformers, kind)
    found: nn.Module = model(model.config_class(**config))
    return found


def _classifier(kind: str, **config: Any) -> nn.Module:
    return _transformers(kind + "ForImageClassification", num_labels=1000, **config)


def _efficientnet_b0() -> nn.Module:
    model = _classifier("EfficientNet", **_B0)
    # Its own has a kernel larger than the image, which OpenVINO refuses.
    model.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)
    return model


def _depth_anything() -> nn.Module:
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(**_DINO, out_indices=[9, 10, 11, 12], reshape_hidden_states=False)
    model = DepthAnythingForDepthEstimation(DepthAnythingConfig(backbone_config=backbone))
    nn.init.uniform_(model.head.conv3.weight)  # before a ReLU, which would leave zeros alone
    found: nn.Module = model
    return found


def _whisper_encoder() -> nn.Module:
    """Whisper base's."""
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        d_model=512,
        encoder_layers=6,
        encoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_attention_heads=8,
    )
    found: nn.Module = WhisperModel(config).encoder
    return found


def _vae_decoder() -> nn.Module:
    """Stable Diffusion's."""
    from diffusers import AutoencoderKL

    blocks = 4
    vae = AutoencoderKL(
        latent_channels=4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
    )
    found: nn.Module = vae.decoder
    return found


def _conv(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    act: type[nn.Module] = nn.SiLU,
    groups: int = 1,
) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act())


class _MobileNetV3(nn.Module):
    """Howard et al. 2019, large."""

    # Kernel, width inside, width, squeezed, act, stride.
    _BLOCKS = (
        *((3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2)),
        *((5, 120, 40, 1, 0, 1), (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2)),
        *((3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1)),
        *((3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2)),
        *((5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1)),
    )

    def __init__(self) -> None:
        super().__init__()
        self.stem, width, blocks = _conv(3, 16, 3, 2, nn.Hardswish), 16, []
        for kernel, inside, outputs, squeezed, act, stride in self._BLOCKS:
            kind = nn.Hardswish if act else nn.ReLU
            steps = [] if inside == width else [_conv(width, inside, 1, act=kind)]
            steps.append(_conv(inside, inside, kernel, stride, kind, inside))
            steps += [_Squeeze(inside)] if squeezed else []
            steps.append(_conv(inside, outputs, 1, act=nn.Identity))
            blocks.append(nn.Sequential(*steps))
            width = outputs
        self.blocks = nn.ModuleList(blocks)
        self.last = _conv(width, 960, 1, act=nn.Hardswish)
        self.head = nn.Sequential(nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            y = block(x)
            x = x + y if x.shape == y.shape else y
        found: Tensor = self.head(self.last(x).mean((2, 3)))
        return found


class _Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inside = width // 4
        self.gate = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inside, 1), nn.ReLU()),
            *(nn.Conv2d(inside, width, 1), nn.Hardsigmoid()),
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x * self.gate(x)
        return found


class _UNet(nn.Module):
    """Ronneberger et al. 2015 with padding, half as wide."""

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256), classes: int = 4) -> None:
        super().__init__()
        steps = list(pairwise((3, *widths)))
        self.down = nn.ModuleList(self._pair(a, b) for a, b in steps)
        self.up = nn.ModuleList(self._pair(a + b, a) for a, b in steps[:0:-1])
        self.last = nn.Conv2d(widths[0], classes, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            _conv(inputs, outputs, act=nn.ReLU), _conv(outputs, outputs, act=nn.ReLU)
        )

    def forward(self, x: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for block in self.down:
            x = block(F.max_pool2d(x, 2) if levels else x)
            levels.append(x)
        for block, level in zip(self.up, levels[-2::-1], strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), level], 1))
        found: Tensor = self.last(x)
        return found


class _C2f(nn.Module):
    """The block of YOLOv8: all stages of a chain of bottlenecks, side by side."""

    def __init__(self, inputs: int, outputs: int, depth: int, residual: bool = False) -> None:
        super().__init__()
        half = outputs // 2
        self.first = _conv(inputs, outputs, 1)
        self.steps = nn.ModuleList(
            nn.Sequential(_conv(half, half), _conv(half, half)) for _ in range(depth)
        )
        self.last = _conv(half * (2 + depth), outputs, 1)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for step in self.steps:
            y = step(parts[-1])
            parts.append(parts[-1] + y if self.residual else y)
        found: Tensor = self.last(torch.cat(parts, 1))
        return found


class _NMS(torch.autograd.Function):
    """ONNX's NonMaxSuppression, which torch has no op for: to be exported, not run."""

    @staticmethod
    def forward(_: Any, boxes: Tensor, scores: Tensor) -> Tensor:
        return torch.zeros(boxes.shape[1], 3, dtype=torch.int64)

    @staticmethod
    def symbolic(g: Any, boxes: Any, scores: Any) -> Any:
        most, overlap = torch.tensor([2**31 - 1]), torch.tensor([0.5])
        return g.op(
            "NonMaxSuppression",
            boxes,
            scores,
            *(g.op("Constant", value_t=t) for t in (most, overlap)),
        )


class _Yolo(nn.Module):
    """YOLOv8 n with its pooling, two-way pyramid and heads; the best boxes after NMS."""

    def __init__(self, classes: int = 80, bins: int = 16, size: int = 640, best: int = 300) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 16, 3, 2), _conv(16, 32, 3, 2), _C2f(32, 32, 1, True))
        self.p3 = nn.Sequential(_conv(32, 64, 3, 2), _C2f(64, 64, 2, True))
        self.p4 = nn.Sequential(_conv(64, 128, 3, 2), _C2f(128, 128, 2, True))
        self.p5 = nn.Sequential(_conv(128, 256, 3, 2), _C2f(256, 256, 1, True), _conv(256, 128, 1))
        self.pooled = _conv(512, 256, 1)
        self.up4, self.up3 = _C2f(384, 128, 1), _C2f(192, 64, 1)
        self.down3, self.down4 = _conv(64, 64, 3, 2), _conv(128, 128, 3, 2)
        self.out4, self.out5 = _C2f(192, 128, 1), _C2f(384, 256, 1)
        widths = (64, 128, 256)
        self.boxes = nn.ModuleList(self._head(w, 64, 4 * bins) for w in widths)
        self.classes = nn.ModuleList(self._head(w, 80, classes) for w in widths)
        self.bins, self.best = bins, best
        steps = [8 * 2**i for i in range(3)]
        grids = [torch.arange(0.5, size // s) for s in steps]
        points = [torch.cartesian_prod(g, g).flip(1) * s for g, s in zip(grids, steps, strict=True)]
        self.register_buffer("points", torch.cat(points).T)
        strides = [torch.full((len(p),), float(s)) for p, s in zip(points, steps, strict=True)]
        self.register_buffer("strides", torch.cat(strides))

    @staticmethod
    def _head(inputs: int, width: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            _conv(inputs, width), _conv(width, width), nn.Conv2d(width, outputs, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        pools = [self.p5(p4)]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        p5 = self.pooled(torch.cat(pools, 1))
        n4 = self.up4(torch.cat([F.interpolate(p5, scale_factor=2.0), p4], 1))
        n3 = self.up3(torch.cat([F.interpolate(n4, scale_factor=2.0), p3], 1))
        n4 = self.out4(torch.cat([self.down3(n3), n4], 1))
        n5 = self.out5(torch.cat([self.down4(n4), p5], 1))
        return self._detections((n3, n4, n5))

    def _detections(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Boxes [n, 4] as corners, and their scores [n]."""

        def join(heads: nn.ModuleList) -> Tensor:
            return torch.cat([h(x).flatten(2) for h, x in zip(heads, levels, strict=True)], 2)

        sides = join(self.boxes).view(1, 4, self.bins, -1).softmax(2)
        sides = (sides * torch.arange(float(self.bins)).view(1, 1, -1, 1)).sum(2)[0] * self.strides
        corners = torch.cat([self.points - sides[:2], self.points + sides[2:]]).T
        scores, order = join(self.classes).sigmoid().amax(1)[0].topk(self.best)
        boxes = corners[order]
        kept = _NMS.apply(boxes[None], scores[None, None])[:, 2]
        return boxes[kept], scores[kept]


_DINO = {"hidden_size": 384, "num_attention_heads": 6, "image_size": 518, "patch_size": 14}
_B0 = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "image_size": 224}
_VIT_TINY = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
_IMAGE = (3, 224, 224)
NETS: dict[str, Net] = {
    "ResNet-50": Net(partial(_classifier, "ResNet"), _IMAGE, (1, 8)),
    "MobileNetV2": Net(partial(_classifier, "MobileNetV2", tf_padding=False), _IMAGE, (1, 8)),
    "MobileNetV3": Net(_MobileNetV3, _IMAGE),
    "EfficientNet-B0": Net(_efficientnet_b0, _IMAGE),
    "ConvNeXt-tiny": Net(partial(_classifier, "ConvNext"), _IMAGE),
    "ViT-tiny": Net(partial(_transformers, "ViTModel", **_VIT_TINY), _IMAGE),
    "Swin-tiny": Net(partial(_classifier, "Swin"), _IMAGE),
    "SegFormer-B0": Net(
        partial(_transformers, "SegformerForSemanticSegmentation", num_labels=150), (3, 512, 512)
    ),
    "DINOv2-small": Net(partial(_transformers, "Dinov2Model", **_DINO), _IMAGE),
    "Depth-Anything-small": Net(_depth_anything, (3, 518, 518)),
    "YOLOv8n with NMS": Net(_Yolo, (3, 640, 640)),
    "U-Net": Net(_UNet, (3, 256, 256)),
    "VAE decoder": Net(_vae_decoder, (4, 32, 32)),
    "CLIP vision": Net(partial(_transformers, "CLIPVisionModelWithProjection"), _IMAGE),
    "wav2vec2-base": Net(partial(_transformers, "Wav2Vec2Model"), (80000,)),
    "Whisper encoder": Net(_whisper_encoder, (80, 3000)),
}
