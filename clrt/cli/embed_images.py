"""`clrt embed --image`: vectors of images and texts in a shared space."""

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
    """Computes the vectors of images and texts.

    Args:
        model: Path of the model.
        images: Image files.
        texts: Texts to embed in the same space.
        batch_size: Images per run.
        normalize: Whether to L2-normalize vectors.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        others: Value by option name, for options that exclude --image.
        keep_going: Whether to skip unreadable images, with an error on standard error.

    Returns:
        (paths of the embedded images, then the texts; their vectors, float32
        [images + texts, dimension]; name of the device).

    Raises:
        InputError: An option of `others` is set, the model is not an image encoder, or an image
            cannot be read and `keep_going` is False.
        Exit: No image can be read, and there are no texts.
    """
    from clrt.vision.image_encoder import ImageEncoder

    for name, value in others.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} cannot be combined with --image; leave one of them out.")
    with ImageEncoder(model, device=device, batch_size=batch_size) as encoder:
        text_vectors = [encoder.encode_text(texts, normalize)] if texts else []
        image_vectors, read = [], list[str]()
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
                image_vectors.append(encoder.encode_pictures(group, normalize))
        if not image_vectors and not text_vectors:
            raise typer.Exit(1)
        vectors = np.concatenate([*image_vectors, *text_vectors])
        return [*read, *texts], vectors, encoder.model.device.name
