"""Output of `clrt-convert`: summary of the result, weights and differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

import clrt
from clrt.cli.console import stderr, stdout
from clrt.errors import counted
from clrt.passes.compress_weights import WeightCompression
from clrt.runtime.execution.signature import listed_symbols, symbol_places
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.tools.convert import Converted, Difference
from clrt.util.fast_dataclass import dataclass
from clrt.util.formatting import format_bytes
from clrt.util.table_text import PlainText

_SHOWN_WEIGHTS = 8  # Rows of the table of compressed weights.
# Instruction sets, by float32 elements per vector register; 4 has several names.
_INSTRUCTION_SETS = {8: " (AVX)", 16: " (AVX-512)"}


def report_conversion(target: Path, converted: Converted, encodes: bool) -> None:
    """Prints the size of a converted model, its free dims and its compressed weights.

    Args:
        target: The written file.
        converted: The converted model.
        encodes: Whether the file contains a tokenizer.
    """
    stdout().print(_summary(target, converted, encodes))
    if places := symbol_places(converted.graph):
        stdout().print(PlainText(f"Free dims: {listed_symbols(places)}; --dim fixes one."))
    if converted.shrunk:
        stdout().print(weight_table(converted.shrunk))
    if converted.kept:
        warn(f"Left in float32, since float16 overflows: {', '.join(converted.kept)}")


@dataclass(frozen=True)
class Precompiled:
    """Result of compiling a model's programs for one device into a folder.

    Attributes:
        device: The device.
        programs: Number of programs that the model needs.
        built: Number of programs compiled now; all other programs were in the folder already.
        seconds: Total time in seconds, with the loading of the model.
    """

    device: DeviceInfo
    programs: int
    built: int
    seconds: float

    @property
    def serves(self) -> str:
        """The devices and versions that use the programs, as a sentence."""
        caps = self.device.caps
        parts = [f"{caps.name} of {caps.platform}", f"driver {caps.driver}"]
        if caps.is_cpu:
            instructions = _INSTRUCTION_SETS.get(caps.float_lanes, "")
            parts.append(f"{caps.float_lanes} float32 per vector{instructions}")
        parts.append(f"clrt {clrt.__version__}")
        return f"They serve only this: {', '.join(parts)}."


def report_programs(results: Sequence[Precompiled], folder: Path) -> None:
    """Prints how many programs were compiled for each device, and into which folder.

    Args:
        results: Result for each device.
        folder: Folder of the programs.
    """
    for result in results:
        before = result.programs - result.built
        existing = f", {before} more were there" if before else ""
        stdout().print(
            PlainText(
                f"{counted(result.built, 'program')} compiled for {result.device.name} into "
                f"'{folder}' in {result.seconds:.1f} s{existing}. {result.serves}"
            ),
            soft_wrap=True,
        )


def warn(text: str) -> None:
    """Prints a warning in yellow on standard error."""
    stderr().print(PlainText(text, style="yellow"))


def _summary(target: Path, converted: Converted, encodes: bool) -> PlainText:
    encoder = ", with its tokenizer" if encodes else ""
    size, millions = format_bytes(target.stat().st_size), converted.parameters / 1e6
    nodes = f"{counted(converted.nodes_before, 'node')} -> {len(converted.graph.nodes)}"
    return PlainText(f"{target}: {size}, {millions:.1f} M parameters, {nodes}{encoder}")


def weight_table(shrunk: Sequence[WeightCompression]) -> Table:
    """Returns a table of the compressed weights with the largest error, worst first."""
    before, after = (sum(getattr(s, a) for s in shrunk) for a in ("nbytes_before", "nbytes"))
    kinds = Counter(s.dtype for s in shrunk).most_common()
    listing = ", ".join(f"{counted(count, 'weight')} as {kind}" for kind, count in kinds)
    table = Table(
        title=f"{listing}: {format_bytes(before)} -> {format_bytes(after)}",
        caption="error: root mean square of the change over that of the weight; the worst first",
    )
    table.add_column("weight", overflow="fold")
    for column in ("shape", "error", "largest"):
        table.add_column(column, justify="right")
    for s in sorted(shrunk, key=lambda s: -s.error)[:_SHOWN_WEIGHTS]:
        shape = "x".join(map(str, s.shape))
        table.add_row(PlainText(s.name), shape, f"{s.error:.2%}", f"{s.largest:.2%}")
    return table


def difference_table(differences: Sequence[Difference], tolerance: float) -> Table:
    """Returns a table of the differences between outputs of the converted and original model.

    Args:
        differences: Difference of each output.
        tolerance: Maximum relative difference; rows above it are red.
    """
    table = Table(title=f"original and result (allowed: {tolerance:.2g} of the largest element)")
    table.add_column("output", overflow="fold")
    for column in ("shape", "largest difference", "of the largest element", "cosine"):
        table.add_column(column, justify="right")
    for d in differences:
        style = "" if d.relative <= tolerance else "red"
        shape = "x".join(map(str, d.shape))
        numbers = (f"{d.largest:.3g}", f"{d.relative:.3g}", f"{d.cosine:.7f}")
        table.add_row(PlainText(d.name), shape, *numbers, style=style)
    return table
