"""Starts the program: shows the window, and loads the model in the background."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program until its window is closed.

    Args:
        arguments: Command-line arguments.

    Returns:
        The exit status.
    """
    multiprocessing.freeze_support()  # files are read in a process of its own
    parser = argparse.ArgumentParser(description="Searches the texts of a folder by meaning.")
    parser.add_argument("folder", nargs="?", type=Path, help="the folder to search")
    parser.add_argument("--model", help="folder, file or name of a sentence encoder")
    parser.add_argument("--device", help="auto, cpu, gpu, part of a device name, or an index")
    parser.add_argument("--data", type=Path, help="where indexes and settings are kept")
    asked = parser.parse_args(arguments)

    from PySide6.QtCore import QSettings
    from PySide6.QtWidgets import QApplication

    from ..encoder import Encoder, find_encoder
    from .engine import Engine
    from .icons import app_icon
    from .window import TITLE, MainWindow

    app = QApplication.instance() or QApplication(sys.argv[:1])
    assert isinstance(app, QApplication)
    app.setApplicationName(TITLE)
    app.setStyle("Fusion")
    app.setWindowIcon(app_icon())
    data = asked.data or _data_folder()
    data.mkdir(parents=True, exist_ok=True)
    engine = Engine(data, lambda: Encoder(asked.model or find_encoder(), asked.device))
    window = MainWindow(engine, QSettings(str(data / "settings.ini"), QSettings.Format.IniFormat))
    window.show()
    if asked.folder is not None:
        window.open_folder(asked.folder)
    try:
        return app.exec()
    finally:
        engine.close()


def _data_folder() -> Path:
    import platformdirs

    return platformdirs.user_data_path("semantic-search", appauthor=False)
