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


def point(page, op, panel=0, run=0):
    """Where an op is drawn, in the window; `op` is its index."""
    place = {"panel": panel, "run": run, "op": op}
    found = page.evaluate("(place) => zerobubble.viewer.placeOf(place)", place)
    return found["x"], found["y"]


def draw(page):
    """Draw now instead of at the next frame."""
    page.evaluate("zerobubble.viewer.draw()")


def pixel(page, x, y):
    """The red, green and blue of the canvas at a point of the window."""
    return page.evaluate(
        """([x, y]) => {
          const { canvas } = zerobubble.viewer;
          const box = canvas.getBoundingClientRect();
          const copy = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
          const context = copy.getContext("2d");
          context.drawImage(canvas, box.left - x, box.top - y);
          return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        [x, y],
    )


def terms(page, selector):
    """Read a description list."""
    return page.eval_on_selector(
        selector,
        "(list) => Object.fromEntries([...list.querySelectorAll('dt')].map((dt) =>"
        "[dt.textContent, dt.nextSibling.textContent]))",
    )


def rows(page, selector):
    return page.eval_on_selector_all(
        f"{selector} tbody tr", "(rows) => rows.map((r) => [...r.children].map((c) => c.innerText))"
    )


def state(page, name):
    return page.evaluate(f"zerobubble.viewer.state.{name}")
