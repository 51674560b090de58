"""Does the node in C++ do what the node in Python does, and does everything run without it?"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import nn
from torch.overrides import TorchFunctionMode

from zerobubble.autograd import WeightQueue, build_native, deferring, native

HERE = Path(__file__).parent
SAME_TESTS = ["test_deferring.py", "test_weight_queue.py", "test_split_equals_plain.py"]


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Build once per run of the tests, also if several processes share the run."""
    if native.directory().exists():
        return native.directory().parent
    if shutil.which("g++") is None or shutil.which("ninja") is None:
        pytest.skip("the C++ node needs g++ and ninja")
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native"
    root.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, FileLock(root / "lock"):
        patch.setenv("ZEROBUBBLE_NATIVE", str(root))
        build_native()
    native.unload()
    return root


@pytest.fixture
def in_cpp(build, monkeypatch):
    monkeypatch.setenv("ZEROBUBBLE_NATIVE", str(build))
    assert native.load()
    yield
    native.unload()


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A place for builds where there is none, and nothing is loaded."""
    native.unload()
    monkeypatch.setenv("ZEROBUBBLE_NATIVE", str(tmp_path))
    yield native.directory()
    native.unload()


def _node_of(call=lambda linear, x: linear(x)):
    linear, queue = nn.Linear(3, 3), WeightQueue()
    with deferring(queue):
        y = call(linear, torch.ones(1, 3))
        y.sum().backward()
    queue.run()
    assert torch.equal(linear.weight.grad, torch.ones(3, 3))
    return y.grad_fn.name()


@pytest.mark.slow
def test_all_tests_of_the_python_node_hold_for_the_cpp_node(build):
    code = (
        "import sys, pytest; from zerobubble.autograd import native; assert native.load(); "
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    environment = os.environ | {"ZEROBUBBLE_NATIVE": str(build), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code, *(str(HERE / name) for name in SAME_TESTS), "-p", "no:xdist"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda linear, x: F.linear(x, linear.weight),
        lambda linear, x: torch.matmul(x, linear.weight),
        lambda linear, x: x.matmul(linear.weight),
        lambda linear, x: x @ linear.weight,
        lambda linear, x: torch.mm(x, linear.weight),
        lambda linear, x: x.mm(linear.weight),
        lambda linear, x: torch.addmm(linear.bias, x, linear.weight),
        lambda linear, x: linear.bias.addmm(x, linear.weight),
    ],
)
def test_every_product_has_the_cpp_node(in_cpp, call):
    assert "Deferred" in _node_of(call)
    assert _node_of(call) != "_DeferredBackward"


@pytest.mark.slow
def test_a_torch_function_mode_sees_the_op(in_cpp):
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    def call(linear, x):
        with Watch():
            return F.linear(x, linear.weight)

    assert _node_of(call) == "_DeferredBackward"
    assert torch._C._nn.linear in seen


@pytest.mark.slow
def test_error_of_mm_for_a_wrong_number_of_dimensions_is_that_of_torch(in_cpp):
    weight = nn.Parameter(torch.eye(3))
    with deferring(WeightQueue()), pytest.raises(RuntimeError, match="must be a matrix"):
        torch.mm(torch.ones(2, 2, 3), weight)


@pytest.mark.slow
def test_node_lets_go_of_queue_and_operands(in_cpp):
    linear, queue = nn.Linear(3, 3), WeightQueue()
    before = sys.getrefcount(queue), sys.getrefcount(linear.weight)
    with deferring(queue):
        y = linear(torch.ones(1, 3))
    assert sys.getrefcount(linear.weight) > before[1]
    y.sum().backward()
    queue.run()
    del y
    assert (sys.getrefcount(queue), sys.getrefcount(linear.weight)) == before


def test_without_a_build_everything_runs_in_python(empty):
    assert not native.load()
    assert _node_of() == "_DeferredBackward"


def test_a_broken_build_is_passed_over(empty):
    empty.mkdir()
    (empty / "zerobubble_native.so").write_bytes(b"not a library")
    assert not native.load()
    assert _node_of() == "_DeferredBackward"


def test_the_build_of_another_torch_is_not_found(empty, monkeypatch):
    monkeypatch.setattr(
        native, "_import", lambda path: pytest.fail("found") if path.exists() else None
    )
    empty.mkdir()
    (empty / "zerobubble_native.so").touch()
    monkeypatch.setattr(torch, "__version__", "0.0.0")
    assert not native.load()


def test_a_compiler_that_fails_is_an_error_only_for_who_builds(empty, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(RuntimeError):
        build_native()
    assert _node_of() == "_DeferredBackward"
