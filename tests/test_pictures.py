"""Are the pictures of the README those that the code draws?"""

import re
from pathlib import Path

import pytest

from docs.pictures import IMAGES, SPECS, draw

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("name", SPECS)
def test_the_picture_is_the_one_that_the_code_draws(name, tmp_path):
    draw(name, tmp_path)
    message = "the picture has changed: look at it, and run make pictures"
    assert (tmp_path / name).read_bytes() == (IMAGES / name).read_bytes(), message


def test_the_readme_shows_every_picture_and_no_other():
    shown = re.findall(r"!\[[^]]+\]\(docs/images/([^)]+\.svg)\)", README.read_text())
    assert shown == [*SPECS]
