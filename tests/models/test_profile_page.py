"""HTML page of a profile, opened in a browser without network access."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import clrt
from clrt.runtime.profiling.profile import Profile
from tests.models.test_profile import ROWS, counted_model
from tests.unit.runtime.profiling import made_up

BROWSERS = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
    "--dump-dom",
)


def open_page(profile: Profile, folder: Path) -> str:
    """Returns the page's DOM after its script ran; fails if the console logged anything."""
    browser = next((b for b in map(shutil.which, BROWSERS) if b), None)
    if browser is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)}")
    page = folder / "profile.html"
    profile.save_html(page)
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={folder / 'browser'}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    logged = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not logged
    return done.stdout


def first_row(dom: str) -> str:
    """Returns the text of the first row of the kernel table."""
    row = re.search(r'id="kernels".*?<tbody><tr.*?</tr>', dom, re.DOTALL)
    assert row is not None
    return unescape(re.sub(r"<[^>]+>", " ", row[0].split("<tbody>")[1]))


def test_profile_page_lists_slowest_kernel_first(tmp_path: Path) -> None:
    with clrt.load(counted_model(), strict=False) as model:
        profile = model.profile(np.repeat(ROWS, 100, 0), repeat=2)
    dom = open_page(profile, tmp_path)
    slowest = max(profile.by_kernel(), key=lambda k: k.ns)
    assert slowest.kernel in first_row(dom)
    assert 'class="row"' in dom  # the graph's


def test_profile_page_escapes_markup_in_names(tmp_path: Path) -> None:
    dom = open_page(made_up.profile(), tmp_path)
    assert "gemm" in first_row(dom)
    assert "<script>alert" not in dom
    title = re.search(r'<h1 id="title">(.*?)</h1>', dom, re.DOTALL)
    assert title is not None and unescape(title[1]) == made_up.NASTY
