"""`clrt embed --image`: vectors of images, and of texts in the same space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from clrt.cli.images import each_picture
from clrt.errors import InputError

ImageOption = Annotated[
    list[str] | None,
    typer.Option("--image", help="Image files; texts then get vectors in the same space."),
]


def embed_images(
    model: str,
    images: Sequence[str],
    texts: Sequence[str],
    batch_size: int,
    normalize: bool,
    device: str | None,
    others: Mapping[str, object],
) -> tuple[list[str], NDArray[np.float32], str]:
    """What was embedded, images first, its vectors, and the device.

    Args:
        others: By the names of their arguments, options that --image excludes.

    Raises:
        InputError: Such an option is given, or as `ImageEncoder`.
    """
    from clrt.vision.image_encoder import ImageEncoder

    for name, value in others.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} does not go with --image; leave one of them out.")
    with ImageEncoder(model, device=device, batch_size=batch_size) as encoder:
        words = [encoder.encode_text(texts, normalize)] if texts else []
        found = []
        for start in range(0, len(images), batch_size):
            group = [p for _, p in each_picture(images[start : start + batch_size])]
            found.append(encoder.encode_pictures(group, normalize))
        return [*images, *texts], np.concatenate([*found, *words]), encoder.model.device.name
