"""Embedding jobs on a Ray cluster (`clrt embed --ray`)."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clrt.errors import ClrtError, DeviceError, InputError
from clrt.ray.resources import device_for_actor
from clrt.text.jobs.extras import need
from clrt.text.jobs.job import EmbedJob
from clrt.text.jobs.options import EmbedOptions, model_digest
from clrt.text.jobs.shards import ShardWriter
from clrt.util.env_vars import whole_number
from clrt.util.fast_dataclass import dataclass

_MAX_BLOCKS = 5000  # Blocks of the Ray dataset of units.
# Time limit, in seconds, of the test whether a cluster answers at its address.
_CONNECT_TIMEOUT_S = 10


@dataclass(frozen=True)
class ActorResources:
    """Resources that each Ray actor of a job gets, and the number of actors.

    Attributes:
        cpus: CPU cores per actor.
        gpus: GPUs per actor.
        actors: Maximum number of actors of the job in the cluster.
    """

    cpus: float
    gpus: float
    actors: int


class ShardActor:
    """Ray actor that writes part files of an embedding job.

    Args:
        folder: The job's output folder.
        options: Model and encoding options.

    Raises:
        InputError: The model's files on this machine differ from those that the job began with.
        ClrtError: The model cannot be loaded, as in `clrt.SentenceEncoder`.
    """

    def __init__(self, folder: str, options: EmbedOptions) -> None:
        job = EmbedJob.open(Path(folder))
        if model_digest(options.model) != job.settings["model"]:
            raise InputError(
                f"'{options.model}' differs on this machine from the model with which the job "
                "began; copy the same model to all machines."
            )
        device = device_for_actor(options.device)
        self._writer = ShardWriter(job, replace(options, device=device))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[int]]:
        """Embeds a batch of work units, and writes their vectors: a part file per unit.

        Args:
            batch: Column "unit": indices of the work units, each some rows of an input file.

        Returns:
            Column "rows": number of rows per unit, with and without a vector.
        """
        return {"rows": [self._writer.make(int(i)).rows for i in batch["unit"]]}


def make_parts_on_ray(
    job: EmbedJob, options: EmbedOptions, pending: Sequence[int], address: str
) -> Iterator[int]:
    """Writes part files on a Ray cluster; yields the number of rows of each unit when finished.

    Ray Data runs the actors that `share_of` plans, and reassigns the units of a machine that fails.
    The calling process holds only indices of units, no rows.

    Args:
        job: The job; all machines must see its input and output folders under the same paths.
        options: Model and encoding options.
        pending: Indices of the units to do.
        address: Cluster address of `ray.init`: "auto", "local" or host:port.

    Raises:
        DeviceError: No cluster answers, or the cluster fails.
        ClrtError: An actor could not load the model or run it.
    """
    ray, data = need("ray"), need("ray.data")
    _connect(ray, address)
    data.DataContext.get_current().enable_progress_bars = False
    share = share_of(ray.nodes(), options.device)
    units = data.from_items(
        [{"unit": i} for i in pending], override_num_blocks=min(len(pending), _MAX_BLOCKS)
    )
    results = units.map_batches(
        ShardActor,
        fn_constructor_args=(str(job.folder.absolute()), options),
        batch_size=1,
        num_cpus=share.cpus,
        num_gpus=share.gpus,
        concurrency=(1, share.actors),
    )
    try:
        for row in results.iter_rows():
            yield int(row["rows"])
    except ray.exceptions.RayError as error:
        raise _cause(error) from error


def _connect(ray: Any, address: str) -> None:
    """Connects this process to a Ray cluster, unless it is connected already.

    Args:
        ray: The module `ray`.
        address: Cluster address of `ray.init`: "auto", "local" or host:port.

    Raises:
        DeviceError: No cluster answers.
    """
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # Errors are raised as well.
    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        number = whole_number(port, 65535)
        if colon and number is not None:  # Fail early: Ray itself retries for minutes.
            socket.create_connection((host.strip("[]"), number), _CONNECT_TIMEOUT_S).close()
        # A cluster started for this command needs no dashboard; its processes slow the start.
        alone = {"include_dashboard": False} if address == "local" else {}
        ray.init(
            address=address,
            **alone,
            ignore_reinit_error=True,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, ValueError, OverflowError, RuntimeError) as error:
        raise DeviceError(
            f"No Ray cluster answers at {address!r} ({error}); start one by `ray start --head`, or "
            "leave --ray out."
        ) from error


def share_of(nodes: Sequence[Mapping[str, Any]], device: str | int | None) -> ActorResources:
    """Plans one actor per GPU of the cluster; without GPUs, actors that share the CPU cores.

    Without GPUs each actor gets as many cores as the smallest machine has, so larger machines run
    several actors.

    Args:
        nodes: Result of `ray.nodes()`.
        device: The requested device, as in `clrt.load`; "cpu" ignores GPUs.

    Raises:
        DeviceError: No machine of the cluster has a GPU or a CPU core.
    """
    alive = [n["Resources"] for n in nodes if n["Alive"]]
    gpus = 0 if device == "cpu" else sum(int(r.get("GPU", 0)) for r in alive)
    if gpus:
        return ActorResources(1, 1, gpus)
    cpus = [int(r.get("CPU", 0)) for r in alive if r.get("CPU", 0) >= 1]
    if not cpus:
        raise DeviceError("No machine of the Ray cluster has a free CPU; add a machine.")
    return ActorResources(min(cpus), 0, sum(c // min(cpus) for c in cpus))


def _cause(error: BaseException) -> ClrtError:
    """Returns why a job on Ray failed: the ClrtError that an actor raised, else a DeviceError.

    Args:
        error: Exception that Ray raised; its message becomes that of the DeviceError.
    """
    seen: BaseException | None = error
    while seen is not None:
        for candidate in (seen, getattr(seen, "cause", None)):
            if isinstance(candidate, ClrtError):
                return candidate
        seen = seen.__cause__ or seen.__context__
    message = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return DeviceError(f"The Ray job failed: {message} Start it again to resume.")
