"""Jobs of `clrt embed` on a cluster."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clrt.errors import ClrtError, DeviceError, InputError
from clrt.ray.resources import device_for_actor
from clrt.text.jobs.extras import need
from clrt.text.jobs.job import EmbedJob
from clrt.text.jobs.options import EmbedOptions, model_digest
from clrt.text.jobs.shards import ShardWriter
from clrt.util.env_vars import whole_number

_MOST_BLOCKS = 5000
_PATIENCE_S = 10


@dataclass(frozen=True)
class ActorShare:
    """What of a machine each actor takes, and how many actors that makes."""

    cpus: float
    gpus: float
    actors: int


class PartActor:
    """Makes parts of the job that lies in a folder."""

    def __init__(self, folder: str, options: EmbedOptions) -> None:
        job = EmbedJob.open(Path(folder))
        if model_digest(options.model) != job.settings["model"]:
            raise InputError(f"'{options.model}' is another model here than where the job began.")
        device = device_for_actor(options.device)
        self._maker = ShardWriter(job, replace(options, device=device))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[int]]:
        """Makes the parts that a batch numbers; gives the rows of each."""
        return {"rows": [self._maker.make(int(i)).rows for i in batch["unit"]]}


def make_parts_on_ray(
    job: EmbedJob, options: EmbedOptions, pending: Sequence[int], address: str
) -> Iterator[int]:
    """Makes parts on a cluster; gives the rows of each once it is there, in any order.

    Ray Data hands units to one actor for each GPU or machine. The units of a machine that dies go
    to the others. This process holds numbers of units, no rows.

    Args:
        pending: The units to do.
        address: Of the cluster, as `ray.init` takes it: "auto", "local" or host:port.

    Raises:
        DeviceError: There is no cluster, or it fails.
        ClrtError: As `ShardWriter`, of an actor.
    """
    ray, data = need("ray"), need("ray.data")
    _connect(ray, address)
    data.DataContext.get_current().enable_progress_bars = False
    share = share_of(ray.nodes(), options.device)
    units = data.from_items(
        [{"unit": i} for i in pending], override_num_blocks=min(len(pending), _MOST_BLOCKS)
    )
    made = units.map_batches(
        PartActor,
        fn_constructor_args=(str(job.folder.absolute()), options),
        batch_size=1,
        num_cpus=share.cpus,
        num_gpus=share.gpus,
        concurrency=(1, share.actors),
    )
    try:
        for row in made.iter_rows():
            yield int(row["rows"])
    except ray.exceptions.RayError as error:
        raise _cause(error) from error


def _connect(ray: Any, address: str) -> None:
    """Joins a cluster, unless this process has.

    Raises:
        DeviceError: There is none.
    """
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # an error is raised, too
    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        number = whole_number(port, 65535)
        if colon and number is not None:  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), number), _PATIENCE_S).close()
        # A cluster that lives as long as the command needs no dashboard, whose processes take time.
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


def share_of(nodes: Sequence[Mapping[str, Any]], device: str | int | None) -> ActorShare:
    """One actor for each GPU, else one for each machine, whose cores a CPU device uses all.

    Args:
        nodes: As `ray.nodes()` gives them.
        device: What the user asks for; "cpu" leaves GPUs alone.

    Raises:
        DeviceError: No machine has a CPU to give.
    """
    alive = [n["Resources"] for n in nodes if n["Alive"]]
    gpus = 0 if device == "cpu" else sum(int(r.get("GPU", 0)) for r in alive)
    if gpus:
        return ActorShare(1, 1, gpus)
    cpus = [int(r.get("CPU", 0)) for r in alive if r.get("CPU", 0) >= 1]
    if not cpus:
        raise DeviceError("No machine of the Ray cluster has a CPU to give; add one.")
    return ActorShare(min(cpus), 0, sum(c // min(cpus) for c in cpus))


def _cause(error: BaseException) -> ClrtError:
    """The error of clrt that ended an actor, or one that says what Ray says."""
    seen: BaseException | None = error
    while seen is not None:
        for found in (seen, getattr(seen, "cause", None)):
            if isinstance(found, ClrtError):
                return found
        seen = seen.__cause__ or seen.__context__
    said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return DeviceError(f"The Ray job failed: {said} Start it again to go on where it ended.")
