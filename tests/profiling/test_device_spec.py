"""Are devices found by name or file, and faults of a file told?"""

import json
from dataclasses import asdict

import pytest

from zerobubble.errors import UsageError
from zerobubble.profiling import A100, H100, find_device_spec


def test_built_in_devices_are_found():
    assert find_device_spec("h100") is H100
    assert find_device_spec("a100") is A100


def test_a_file_has_the_same_keys_and_may_leave_out_assumptions(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(asdict(A100)))
    assert find_device_spec(str(path)) == A100
    values = asdict(A100)
    del values["matmul_efficiency"], values["kernel_us"]
    path.write_text(json.dumps(values))
    assert find_device_spec(str(path)) == A100


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"bf16_tflop": 3}, "unknown key 'bf16_tflop': the keys are name, bf16_tflops,"),
        ({"memory_gb": None}, "device spec: memory_gb must be a number, not None"),
        ({"memory_gb": 0}, "device spec: memory_gb must be above 0, not 0"),
        ({"fp32_tflops": -1}, "device spec: fp32_tflops must be above 0, not -1"),
        ({"kernel_us": -1}, "device spec: kernel_us must be at least 0, not -1"),
        ({"link_efficiency": 1.5}, "device spec: link_efficiency must be at most 1, not 1.5"),
        ({"name": 3}, "device spec: name must be a text, not 3"),
        ({"link_gb_per_s": True}, "device spec: link_gb_per_s must be a number, not True"),
        ({"memory_tb_per_s": 1e999}, "device spec: memory_tb_per_s must be above 0, not inf"),
    ],
)
def test_a_fault_of_a_file_is_told(tmp_path, changed, part):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(asdict(H100) | changed))
    with pytest.raises(UsageError) as caught:
        find_device_spec(str(path))
    assert str(caught.value).startswith(f"{path}: {part}")


def test_what_is_missing_is_told(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"name": "mine"}')
    with pytest.raises(UsageError, match="key 'bf16_tflops' is missing: give name, bf16_tflops,"):
        find_device_spec(str(path))
    path.write_text("[]")
    with pytest.raises(UsageError, match=r"a device spec is an object, not \[\]: the keys are"):
        find_device_spec(str(path))
    with pytest.raises(UsageError, match=r"cannot read .*none.json"):
        find_device_spec(str(tmp_path / "none.json"))
