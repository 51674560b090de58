"""How do tests open a page? In a real browser, from a file, with everything it asks for noted."""

import shutil

import pytest

from tests.cli.conftest import zerobubble  # noqa: F401 (a fixture)
from zerobubble.view.html import write_page

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
_SIZE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser():
    """One browser for the tests of a file."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: pip install '.[dev]'"
    )
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no chromium was found: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=_FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def open_file(browser):
    """Open a file; at the end there must have been no error and no request but for the file."""
    contexts, errors, requests = [], [], []

    def open_(path, hash_="", scheme="light"):
        contexts.append(browser.new_context(viewport=_SIZE, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + hash_)
        page.noted_errors = errors
        return page

    yield open_
    for context in contexts:
        context.close()
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.fixture
def open_page(open_file, tmp_path):
    """Write the page of some panels and open it."""

    def open_(*panels, **options):
        path = tmp_path / "page.html"
        path.write_text(write_page(panels), encoding="utf-8")
        return open_file(path, **options)

    return open_
