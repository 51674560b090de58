"""What does the page look like? The pictures of ``docs/view.md``, taken in a browser.

The measured run is pretended: the plan with times up to 30% longer and late starts, from a fixed
seed, so that the picture stays the same.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from tests.view.browser import launch
from tests.view.pretended import measured_of
from zerobubble.cli._resolve import resolve
from zerobubble.costs import Costs
from zerobubble.schedules import build
from zerobubble.view.html import Panel, write_page

FOLDER = Path(__file__).parents[1] / "docs" / "images"
_WIDTH = 1080


class Picture(NamedTuple):
    """One picture: what is shown, what is chosen in the URL's hash, and the theme."""

    name: str
    panels: list[Panel]
    hash: str
    scheme: str
    height: int


def main() -> None:
    """Take all pictures again and say how large they are."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with launch() as browser, TemporaryDirectory() as folder:
        for picture in _pictures():
            path = Path(folder, f"{picture.name}.html")
            path.write_text(write_page(picture.panels), encoding="utf-8")
            size = {"width": _WIDTH, "height": picture.height}
            page = browser.new_page(viewport=size, color_scheme=picture.scheme)
            page.goto(path.as_uri() + picture.hash)
            page.wait_for_timeout(300)
            target = FOLDER / f"{picture.name}.png"
            page.screenshot(path=target)
            page.close()
            print(f"{target.name} {target.stat().st_size / 1024:.0f} KiB")


def _pictures() -> list[Picture]:
    costs, limits = "1,1.1,.9,.1", [4.0] * 4
    one = Panel(*resolve("zb-h1", 4, 8, costs), limits)
    names = ("1f1b", "zb-h1", "zb-v")
    several = [Panel(*resolve(name, 4, 8, costs), limits) for name in names]
    return [
        Picture("schedule", [one], "#op=0,0,27", "light", 880),
        Picture("critical-path", [one], "#critical=1", "dark", 880),
        Picture("comparison", several, "", "light", 690),
        Picture("planned-over-measured", [_measured()], "", "light", 900),
    ]


def _measured() -> Panel:
    schedule = build("zb-h1", num_ranks=4, num_microbatches=8)
    costs = Costs.uniform(4, f=10, b=11, w=9, transfer=1)
    measured = measured_of(np.random.default_rng(2), schedule, costs)
    return Panel(schedule, costs, None, "ms", measured, "plan: the expected times of the run")
