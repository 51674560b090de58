"""How do tests open a page? In a real browser, from a file, with everything it asks for noted."""

import pytest

from tests.cli.conftest import zerobubble  # noqa: F401 (a fixture)
from tests.view.browser import launch, why_no_browser
from zerobubble.view.html import write_page

_SIZE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser():
    """One browser for the tests of a file."""
    reason = why_no_browser()
    if reason:
        pytest.skip(reason)
    with launch() as browser:
        yield browser


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
