"""How is a profile written as JSON, and read back?

Layers of equal costs are written once: ``layers`` gives for each microbatch size the number of
every layer's row in ``costs``. Zeros are left out of a row::

    {
      "format": "zerobubble-profile",
      "version": 1,
      "model": "mine",
      "device": "cpu",
      "layer_names": ["embedding", "block 0", "block 1"],
      "costs": [
        {"forward_ms": 0.5, "output_bytes": 4096},
        {"forward_ms": 2.0, "backward_input_ms": 2.5, "output_bytes": 4096}
      ],
      "layers": {"1": [0, 1, 1]},
      "link": {"latency_ms": 0.1, "bytes_per_ms": 2000000.0},
      "links": [],
      "step_overhead_ms": 0.3,
      "memory_bytes": null,
      "host": {"latency_ms": 0.01, "bytes_per_ms": 25000000.0}
    }

Each of ``links`` has the two ``ranks`` as well. A bandwidth of ``null`` is one without limit.
Without ``host``, copies to the host take no time.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from zerobubble.costs import LARGEST
from zerobubble.errors import UsageError
from zerobubble.formats.checking import a_list, a_number, a_text, an_object, fail, with_keys
from zerobubble.formats.reading import parse_json, read_text, show_value, write_text
from zerobubble.profile.data import LayerCosts, Link, Profile

FORMAT, VERSION = "zerobubble-profile", 1
KEYS = (
    "format",
    "version",
    "model",
    "device",
    "layer_names",
    "costs",
    "layers",
    "link",
    "links",
    "step_overhead_ms",
    "memory_bytes",
    "host",
)
_COSTS = tuple(each.name for each in fields(LayerCosts))
_LINK = ("latency_ms", "bytes_per_ms")


def dumps(profile: Profile) -> str:
    """Write a profile as JSON text.

    >>> profile = Profile("mine", "cpu", ("a", "b"), {1: (LayerCosts(2.5), LayerCosts(2.5))})
    >>> print(dumps(profile).splitlines()[7].strip())
    {"forward_ms": 2.5}
    >>> loads(dumps(profile), "mine.json") == profile
    True
    """
    rows = list(dict.fromkeys(costs for table in profile.layers.values() for costs in table))
    row_of = {costs: number for number, costs in enumerate(rows)}
    tables = {str(size): [row_of[c] for c in table] for size, table in profile.layers.items()}
    links = (
        {"ranks": list(ranks)} | _link_values(link) for ranks, link in sorted(profile.links.items())
    )
    values = (
        json.dumps(FORMAT),
        json.dumps(VERSION),
        json.dumps(profile.model),
        json.dumps(profile.device),
        json.dumps(profile.layer_names),
        _lines(json.dumps(_without_zeros(costs)) for costs in rows),
        json.dumps(tables),
        json.dumps(_link_values(profile.link)),
        _lines(map(json.dumps, links)),
        json.dumps(profile.step_overhead_ms),
        json.dumps(profile.memory_bytes),
        json.dumps(_link_values(profile.host)),
    )
    lines = (f'  "{key}": {value}' for key, value in zip(KEYS, values, strict=True))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def loads(text: str, source: str) -> Profile:
    """Read a profile from JSON text; ``source`` names it in errors.

    Raises:
        UsageError: the text is not JSON, or not of this format; the message names the place.

    >>> loads('{"format": "zerobubble-profile", "version": 2}', "mine.json")
    Traceback (most recent call last):
    zerobubble.errors.UsageError: mine.json: version is 2, but this release reads version 1
    """
    value = parse_json(text, source)
    try:
        return _profile(_checked_keys(value))
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def save(profile: Profile, path: str | Path) -> None:
    """Write a profile to a JSON file.

    Raises:
        UsageError: the file cannot be written.
    """
    write_text(path, dumps(profile))


def load(path: str | Path) -> Profile:
    """Read a profile from a JSON file.

    Raises:
        UsageError: the file cannot be read, or as for ``loads``.
    """
    return loads(read_text(path), str(path))


def _lines(items: Iterable[str]) -> str:
    lines = ",\n    ".join(items)
    return f"[\n    {lines}\n  ]" if lines else "[]"


def _without_zeros(costs: LayerCosts) -> dict[str, float]:
    return {name: value for name, value in asdict(costs).items() if value}


def _link_values(link: Link) -> dict[str, float | None]:
    bandwidth = None if math.isinf(link.bytes_per_ms) else link.bytes_per_ms
    return {"latency_ms": link.latency_ms, "bytes_per_ms": bandwidth}


def _checked_keys(value: Any) -> dict[str, Any]:
    values = an_object("a profile", value)
    if values.get("format", FORMAT) != FORMAT:
        fail(f"format is {show_value(values['format'])}, but a profile has {FORMAT!r}")
    version = values.get("version", VERSION)
    if not _is_count(version) or version != VERSION:
        fail(f"version is {show_value(version)}, but this release reads version {VERSION}")
    return with_keys("the profile", {"host": _link_values(Link())} | values, KEYS)


def _profile(values: dict[str, Any]) -> Profile:
    names = a_list("layer_names", values["layer_names"])
    rows = [_row(i, row) for i, row in enumerate(a_list("costs", values["costs"]))]
    memory = values["memory_bytes"]
    return Profile(
        _text("model", values["model"]),
        _text("device", values["device"]),
        tuple(_text(f"layer_names[{i}]", name) for i, name in enumerate(names)),
        dict(
            _table(size, table, rows)
            for size, table in an_object("layers", values["layers"]).items()
        ),
        _link("link", values["link"]),
        _links(a_list("links", values["links"])),
        _number("step_overhead_ms", values["step_overhead_ms"]),
        None if memory is None else _number("memory_bytes", memory),
        _link("host", values["host"]),
    )


def _row(number: int, value: Any) -> LayerCosts:
    place = f"costs[{number}]"
    row = an_object(place, value)
    if unknown := sorted(set(row) - set(_COSTS)):
        fail(f"{place}: unknown key {show_value(unknown[0])}: the keys are {', '.join(_COSTS)}")
    return LayerCosts(**{name: _number(f"{place}.{name}", each) for name, each in row.items()})


def _table(size: str, table: Any, rows: list[LayerCosts]) -> tuple[int, tuple[LayerCosts, ...]]:
    place = f"layers[{show_value(size)}]"
    if not re.fullmatch("[1-9][0-9]{0,8}", size):
        fail(f"{place}: {show_value(size)} is not a microbatch size: write a number of samples")
    numbers = a_list(place, table)
    for layer, number in enumerate(numbers):
        if not _is_count(number) or number >= len(rows):
            fail(
                f"{place}[{layer}] must be the number of a row of costs, of which there are "
                f"{len(rows)}, not {show_value(number)}"
            )
    return int(size), tuple(rows[number] for number in numbers)


def _links(values: list[Any]) -> dict[tuple[int, int], Link]:
    links: dict[tuple[int, int], Link] = {}
    for number, value in enumerate(values):
        ranks, link = _link_of(number, value)
        if ranks in links:
            fail(f"links[{number}]: ranks {list(ranks)} are given twice: delete one")
        links[ranks] = link
    return links


def _link_of(number: int, value: Any) -> tuple[tuple[int, int], Link]:
    place = f"links[{number}]"
    values = dict(an_object(place, value))
    ranks = a_list(f"{place}.ranks", values.pop("ranks", None))
    if len(ranks) != 2 or not all(map(_is_count, ranks)) or not ranks[0] < ranks[1]:
        fail(f"{place}.ranks must be two ranks, the lower first, not {show_value(ranks)}")
    return (ranks[0], ranks[1]), _link(place, values)


def _link(place: str, value: Any) -> Link:
    values = with_keys(place, an_object(place, value), _LINK)
    bandwidth = values["bytes_per_ms"]
    return Link(
        _number(f"{place}.latency_ms", values["latency_ms"]),
        math.inf if bandwidth is None else _number(f"{place}.bytes_per_ms", bandwidth),
    )


def _text(place: str, value: Any) -> str:
    return a_text(place, value, printable=True)


def _number(place: str, value: Any) -> float:
    return a_number(place, value, LARGEST)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
