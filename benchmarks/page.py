"""How long does the page take to open, and how many frames does it draw in a second?

Times of the browser's own clock. ``frame`` is the median time from one frame to the next while the
picture pans with every frame; ``draw`` is what drawing takes of it.
"""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.scale import zb_h1
from tests.view.browser import launch
from zerobubble.costs import Costs
from zerobubble.view.html import Panel, write_page

SIZES = ((8, 64), (64, 512), (64, 2048))
_NUM_FRAMES = 40
_PAN = f"""async (share) => {{
  const {{ viewer }} = zerobubble;
  const {{ extent }} = viewer.layout();
  viewer.show(extent * 0.3, extent * (0.3 + share));
  const frames = [];
  const draws = [];
  for (let k = 0; k <= {_NUM_FRAMES}; k++) {{
    frames.push(await new Promise(requestAnimationFrame));
    viewer.pan(extent * share / 200);
    const began = performance.now();
    viewer.draw();
    draws.push(performance.now() - began);
  }}
  return [frames.slice(1).map((time, k) => time - frames[k]), draws];
}}"""


def main(repetitions: int = 3) -> None:
    """Print a row for each size: opening, and panning with 60% and with 1% of the time in sight."""
    print(f"{'ops':>8}  {'KiB':>6}  {'open':>8}  {'60%: frame, draw':>18}  {'1%: frame, draw':>18}")
    with launch() as browser, TemporaryDirectory() as folder:
        for num_ranks, num_microbatches in SIZES:
            schedule = zb_h1(num_ranks, num_microbatches)
            panel = Panel(schedule, Costs.uniform(num_ranks, transfer=0.1))
            path = Path(folder, "page.html")
            path.write_text(write_page([panel]), encoding="utf-8")
            found = [_measure(browser, path) for _ in range(repetitions)]
            cells = [f"{schedule.num_ops:>8}", f"{path.stat().st_size / 1024:>6.0f}"]
            opened, *pans = (median(column) for column in zip(*found, strict=True))
            cells.append(f"{opened:>5.0f} ms")
            cells += [f"{pans[k]:>9.1f}, {pans[k + 1]:>4.1f} ms" for k in (0, 2)]
            print("  ".join(cells))


def _measure(browser, path):
    """Open a page: ms from the start of loading to its first frame, then of frames and draws."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(path.as_uri())
    opened = page.evaluate(
        "new Promise((done) => requestAnimationFrame(() => done(performance.now())))"
    )
    pans = [median(times) for share in (0.6, 0.01) for times in page.evaluate(_PAN, share)]
    page.close()
    return opened, *pans
