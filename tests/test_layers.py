"""Does every module import only from the layers above its own, and does torch stay out?"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import zerobubble

ROOT = Path(zerobubble.__file__).parent

# Each name may use the names before it on its own line and those of the layers it may use.
LAYERS = {
    0: "errors jit ir graph costs",
    1: "verify waits copy_engines simulate measured lower copies schedules formats search profile "
    "plan",
    2: "view",
    3: "autograd",
    4: "runtime profiling checkpoint",
    5: "integrations train",
    6: "cli",
}
MAY_USE = {0: [], 1: [0], 2: [0, 1], 3: [], 4: [0, 1, 3], 5: [0, 1, 2, 3, 4], 6: [0, 1, 2, 3, 4, 5]}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names.split()}
ENTRANCES = {ROOT / "__init__.py", ROOT / "__main__.py"}
MODULES = sorted(set(ROOT.rglob("*.py")) - ENTRANCES)


def part(path):
    """Name the module or package directly below zerobubble that a file belongs to."""
    return Path(path).relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree):
    """Yield the dotted name of every import below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module


def allowed(name):
    """List the parts that a part may import."""
    layer = LAYER_OF[name]
    siblings = LAYERS[layer].split()
    above = [other for other, its in LAYER_OF.items() if its in MAY_USE[layer]]
    return {*above, *siblings[: siblings.index(name) + 1]}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_layers(path):
    assert part(path) in LAYER_OF, "put the new module into a layer of this table"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = [name.split(".") for name in imports(tree) if name.split(".")[0] == "zerobubble"]
    assert all(len(names) > 1 for names in own), "import from the module, not from zerobubble"
    assert {names[1] for names in own} <= allowed(part(path))


@pytest.mark.parametrize(
    "path", [p for p in MODULES if LAYER_OF.get(part(p), 0) <= 2], ids=lambda path: path.stem
)
def test_the_pure_half_does_not_know_torch(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert "torch" not in {name.split(".")[0] for name in imports(tree)}


def test_commands_import_what_needs_torch_inside_functions():
    modules = [f"zerobubble.cli.{path.stem}" for path in (ROOT / "cli").glob("[!_]*.py")]
    code = f"import sys, {', '.join(modules)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_simulating_leaves_torch_and_numba_unimported():
    code = (
        "import sys, zerobubble as zb\n"
        "zb.simulate(zb.build('zb-h1', 4, 8), zb.Costs.uniform(4))\n"
        "assert not {'torch', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_commands_leave_numba_unimported_for_a_small_schedule():
    code = (
        "import sys; from zerobubble.cli import main\n"
        "for command in ('show', 'compare', 'verify'):\n"
        "    assert main([command, 'zb-h1', '-p', '4', '-m', '8']) == 0\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


PURE_NAMES = {
    "Costs",
    "Kind",
    "Op",
    "PipelineError",
    "Placement",
    "Plan",
    "Schedule",
    "ScheduleError",
    "SearchResult",
    "Timeline",
    "UsageError",
    "ZeroBubbleError",
    "build",
    "from_building_block",
    "plan",
    "search",
    "simulate",
    "verify",
}
TORCH_NAMES = {"Pipeline", "PipelineOptimizer", "Whole", "split_report", "splitting"}


def test_public_names_are_pinned():
    assert set(zerobubble.__all__) == PURE_NAMES | TORCH_NAMES
    assert len(zerobubble.__all__) <= 25
    assert [*zerobubble.__all__] == sorted(zerobubble.__all__)
