"""Does no command write over a file that is not of the kind it writes, nor two into one?"""

import pytest

from tests.formats.test_timeline import a_run
from zerobubble.formats import timeline
from zerobubble.formats.json import save
from zerobubble.schedules import build

SIZE = ("-p", 2, "-m", 2)
SHOW, EXPORT = ("show", "zb-h1", *SIZE), ("export", "zb-h1", *SIZE)
SEARCH = ("search", "-p", 2, "-m", 4)
PLAN = ("plan", "--profile", "none.json", "-p", 2, "--batch-size", 4)
PROFILE = ("profile", "--device-spec", "h100")
WRITERS = {
    (*EXPORT, "--trace"): "a trace of zerobubble",
    (*EXPORT, "--csv"): "a CSV of torch.distributed.pipelining",
    (*EXPORT, "--svg"): "a picture of zerobubble",
    (*SHOW, "--svg"): "a picture of zerobubble",
    (*SHOW, "--html"): "a page of zerobubble",
    (*SHOW, "--out"): "a schedule of zerobubble",
    ("view", "zb-h1", *SIZE, "--out"): "a page of zerobubble",
    (*SEARCH, "--out"): "a schedule of zerobubble",
    (*PLAN, "--out"): "a plan of zerobubble",
    (*PROFILE, "--out"): "a profile of zerobubble",
}


@pytest.mark.parametrize("argv", WRITERS)
@pytest.mark.parametrize("name", ["timeline.json", "notes.txt", "table.csv", "drawn.svg"])
def test_a_file_of_another_kind_is_left_alone(refused, tmp_path, argv, name):
    timeline.save(a_run(), tmp_path / "timeline.json")
    (tmp_path / "notes.txt").write_bytes(b"\xff mine")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "drawn.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9"></svg>')
    kept = (tmp_path / name).read_bytes()
    problem = f"{name} exists and is not {WRITERS[argv]}: write to another file"
    assert refused(*argv, name) == f"zerobubble {argv[0]}: {problem}"
    assert (tmp_path / name).read_bytes() == kept


@pytest.mark.parametrize("argv", [argv for argv in WRITERS if argv[0] != "plan"])
@pytest.mark.parametrize("big", [False, True])
def test_its_own_kind_and_an_empty_file_are_replaced(zerobubble, tmp_path, argv, big):
    (tmp_path / "target").touch()
    sizes = ("-m", 300) if big and "-m" in argv and argv[0] != "search" else ()
    assert zerobubble(*argv, "target", *sizes).status == 0
    first = (tmp_path / "target").read_text()
    assert zerobubble(*argv, "target", *sizes).status == 0
    assert len(first) > 20
    assert len((tmp_path / "target").read_text()) > 20


@pytest.mark.parametrize("argv", WRITERS)
def test_an_empty_name_is_refused(refused, argv):
    flag = argv[-1]
    message = f"{flag} '' names no file: write one, or leave out {flag}"
    assert refused(*argv, "") == f"zerobubble {argv[0]}: {message}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((*EXPORT, "--trace", "a", "--csv", "./a"), "--trace and --csv name the same file, a"),
        ((*EXPORT, "--csv", "a", "--svg", "b/../a"), "--csv and --svg name the same file, a"),
        ((*SHOW, "--out", "a", "--html", "a"), "--out and --html name the same file, a"),
    ],
)
def test_two_flags_with_one_file_are_refused(refused, tmp_path, argv, message):
    (tmp_path / "b").mkdir()
    assert refused(*argv) == f"zerobubble {argv[0]}: {message}"
    assert not (tmp_path / "a").exists()


def test_nothing_is_written_if_one_of_several_cannot_be(refused, tmp_path):
    save(build("zb-h1", 2, 2), tmp_path / "mine.json")
    refused(*EXPORT, "--trace", "new.json", "--svg", "mine.json")
    assert not (tmp_path / "new.json").exists()
