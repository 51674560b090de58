"""How is a browser driven? Debian's chromium by playwright, for tests, benchmarks and pictures."""

import shutil
from contextlib import contextmanager
from importlib.util import find_spec

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


def find_chromium():
    """Give the path of a browser, or None."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def why_no_browser():
    """Say what is missing and how to get it, or None if nothing is."""
    if find_spec("playwright") is None:
        return "playwright is missing: pip install '.[dev]'"
    if find_chromium() is None:
        return "no chromium was found: apt-get install chromium"
    return None


@contextmanager
def launch():
    """Start a browser that asks no host for anything, and end it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=_FLAGS.split())
        try:
            yield browser
        finally:
            browser.close()
