"""Do the examples of the README print what stands there?"""

import doctest
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_examples_print_what_stands_there():
    result = doctest.testfile(str(README), module_relative=False)
    assert (result.failed, result.attempted) == (0, 11)
