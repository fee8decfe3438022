"""Pages in a real Chromium without a network; tests/conftest.py starts it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def started() -> Iterator[Any]:
    """A running Chromium; a test that needs one is skipped where there is none."""
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    path = next(filter(None, found), None)
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


def open_page(
    browser: Any, file: Path, width: int = 1280, part: str = "", **kind: Any
) -> tuple[Any, list[str]]:
    """The page without a network, and everything that it complains about from now on.

    Args:
        part: what follows the address, such as ``#name``.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, **kind)
    context.set_offline(True)
    tab = context.new_page()
    complaints: list[str] = []

    def dismiss(dialog: Any) -> None:
        complaints.append("dialog")
        dialog.dismiss()

    tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    tab.on("dialog", dismiss)
    tab.on(
        "console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None
    )
    tab.on(
        "request",
        lambda r: (
            None
            if r.url.startswith(("file:", "data:", "blob:"))
            else complaints.append(f"fetched {r.url}")
        ),
    )
    tab.goto(file.as_uri() + part)
    tab.wait_for_selector("html[data-state=ready]", timeout=15_000)
    return tab, complaints


def texts(tab: Any, selector: str) -> list[str]:
    return [text.strip() for text in tab.locator(selector).all_text_contents()]
