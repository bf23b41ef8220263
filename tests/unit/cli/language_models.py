"""Helpers shared by the tests of text generation commands."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from clrt.cli import app
from tests.generation.text_folders import END, write_texts
from tests.harness import quick_device


def run(*args: str | Path, text: str | bytes | None = None) -> Result:
    """Runs a command on the device with the fastest compiler."""
    given = [*map(str, args), "--device", str(quick_device().index)]
    return CliRunner().invoke(app, given, input=text)


def write_model(folder: Path, template: str | None = "chatml") -> Path:
    """Writes a language model that generates an end token."""
    return write_texts(folder, [END], template)
