"""Frozen search program without Python, PATH or network, and with an empty home folder.

`make test-search-app` runs this on a virtual display.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.semantic_search.store import Counts, Store
from tests.examples.samples import write_numbered

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "dist" / "semantic-search"
LIBRARIES = Path("/lib/x86_64-linux-gnu")
# What every desktop has: the C library, and what draws.
SYSTEM = "ld-linux-x86-64 libc libm libdl libpthread librt libutil libz libstdc++ libresolv libGL "
SYSTEM += (
    "libEGL libGLdispatch libGLX libOpenGL libxcb libX11 libXext libXau libXdmcp libdrm libgbm"
)
LONGEST_START_S = 3.0
PATIENCE_S = 120.0


@pytest.fixture
def bare_root(tmp_path: Path) -> Path:
    """The program, 1,000 texts, the system's libraries and fonts."""
    root = tmp_path / "root"
    for folder in ("lib64", "lib/x86_64-linux-gnu", "tmp", "home", "proc", "dev", "etc"):
        (root / folder).mkdir(parents=True)
    for name in SYSTEM.split():
        for library in LIBRARIES.glob(f"{name}.so*"):
            shutil.copy(library, root / "lib/x86_64-linux-gnu" / library.name)
    shutil.copy(LIBRARIES / "ld-linux-x86-64.so.2", root / "lib64")
    shutil.copytree("/etc/fonts", root / "etc/fonts")
    shutil.copytree("/usr/share/fonts", root / "usr/share/fonts")
    shutil.copytree(APP, root / "app", symlinks=True)
    write_numbered(root / "texts", 1000)
    return root


@pytest.fixture
def start(bare_root: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    script = (
        'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && '
        'mount --rbind /tmp "$0/tmp" && exec env -i HOME=/home DISPLAY="$DISPLAY" '
        'XAUTHORITY="$XAUTHORITY" "$(command -v chroot)" "$0" /app/semantic-search /texts'
    )
    command = ["unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child"]

    def starting() -> subprocess.Popen[bytes]:
        program = subprocess.Popen([*command, "sh", "-c", script, str(bare_root)])
        started.append(program)
        return program

    yield starting
    for program in started:
        program.kill()
        program.wait()


def wait_until(condition: Callable[[], bool], program: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert program.poll() is None and time.monotonic() < end
        time.sleep(0.05)


def has_window() -> bool:
    command = ["xdotool", "search", "--onlyvisible", "--name", "Semantic Search"]
    return subprocess.run(command, capture_output=True).returncode == 0


def counted(root: Path) -> Counts:
    files = list((root / "home/.local/share/semantic-search/indexes").glob("*.sqlite"))
    if not files:
        return Counts(0, 0, 0, 0)
    with Store(files[0]) as store:
        return store.counts()


def embedded(root: Path) -> int:
    counts = counted(root)
    return counts.passages - counts.left


def test_frozen_program_resumes_after_kill(
    bare_root: Path, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    begin = time.monotonic()
    program = start()
    wait_until(has_window, program)
    taken = time.monotonic() - begin
    print(f"\na window after {taken:.2f} s")
    wait_until(lambda: embedded(bare_root) >= 300, program)
    program.kill()  # and by it all that runs in its namespace
    program.wait()
    kept = embedded(bare_root)
    assert 300 <= kept < 1000
    program = start()
    wait_until(lambda: embedded(bare_root) == 1000, program)
    assert counted(bare_root) == Counts(1000, 1000, 0, 0)
    assert taken <= LONGEST_START_S
