"""Which pictures does the README show? `make pictures` draws them anew."""

from pathlib import Path

from zerobubble.cli import main

IMAGES = Path(__file__).parent / "images"
SPECS = {
    "1f1b.svg": "1f1b",
    "zb-h1.svg": "zb-h1",
    "zb-v.svg": "zb-v",
    "searched.svg": "zb-auto:v=2,memory=3",
}


def draw(name: str, folder: Path) -> None:
    """Draw one picture as ``zerobubble show`` does, at F = B = W."""
    words = ["export", SPECS[name], "-p", "4", "-m", "8", "--svg", str(folder / name)]
    assert main(words) == 0


if __name__ == "__main__":
    for each in SPECS:
        draw(each, IMAGES)
