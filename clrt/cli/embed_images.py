"""`clrt embed --image`: vectors of images, and of texts in the same space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from clrt.cli.console import say_error
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
    keep_going: bool,
) -> tuple[list[str], NDArray[np.float32], str]:
    """Returns what was embedded, images first, its vectors, and the device's name.

    Args:
        keep_going: Leave out an image that cannot be read, and say so on standard error.
        others: By the names of their arguments, options that --image excludes.

    Raises:
        InputError: Such an option is given, or as `ImageEncoder`.
        InputError: An image cannot be read, and `keep_going` is false.
        Exit: None can be read, and there are no texts.
    """
    from clrt.vision.image_encoder import ImageEncoder

    for name, value in others.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} does not go with --image; leave one of them out.")
    with ImageEncoder(model, device=device, batch_size=batch_size) as encoder:
        words = [encoder.encode_text(texts, normalize)] if texts else []
        found, read = [], list[str]()
        for start in range(0, len(images), batch_size):
            group = []
            for path in images[start : start + batch_size]:
                try:
                    ((_, picture),) = each_picture([path])
                except InputError as error:
                    if not keep_going:
                        raise
                    say_error(str(error))
                else:
                    group.append(picture)
                    read.append(path)
            if group:
                found.append(encoder.encode_pictures(group, normalize))
        if not found and not words:
            raise typer.Exit(1)
        return [*read, *texts], np.concatenate([*found, *words]), encoder.model.device.name
