"""Is a schedule found in a user's Python file, and is every mistake in it told in one line?"""

import pytest

from zerobubble.errors import UsageError
from zerobubble.formats.python import blame, load_recipe
from zerobubble.schedules import REGISTRY, build

MINE = '''
from zerobubble.ir import BW, F, linear
from zerobubble.schedules import schedule


@schedule("1f1b", placement=linear, paper="mine")
def my_schedule(rank, *, num_ranks, num_microbatches):
    """Run all forwards first."""
    yield from (F(rank, i) for i in range(num_microbatches))
    yield from (BW(rank, i) for i in range(num_microbatches))
'''


def write(tmp_path, text):
    path = tmp_path / "my_file.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["my_schedule", "1f1b"])
def test_a_function_is_found_and_the_registry_stays(tmp_path, name):
    before = dict(REGISTRY)
    built = load_recipe(write(tmp_path, MINE), name).build(2, 3)
    assert before == REGISTRY
    assert list(built.ops(0)) == list(build("gpipe", 2, 3).ops(0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINE, " has no schedule 'other': it has my_schedule"),
        ("", " has no schedule 'other': put @schedule(\"name\", ...) above the function"),
        ("a = 1\nb = ", ", line 2: invalid syntax"),
        ("\n\n1 / 0", ", line 3: ZeroDivisionError: division by zero"),
        ("import no_such_module", ", line 1: ModuleNotFoundError: No module named "),
        ("raise SystemExit(3)", ", line 1: SystemExit: 3"),
    ],
)
def test_a_mistake_in_the_file_is_told(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as error:
        load_recipe(path, "other")
    assert str(error.value).startswith(path + message)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*none.py: No such file or directory"):
        load_recipe(str(tmp_path / "none.py"), "mine")


def test_a_mistake_in_the_function_is_told(tmp_path):
    path = write(tmp_path, MINE.replace("yield from (F(rank", "yield from (F(rank.x"))
    with (
        pytest.raises(UsageError, match=r"my_file.py, line 9: AttributeError: 'int' object"),
        blame(path),
    ):
        load_recipe(path, "my_schedule").build(1, 1)
