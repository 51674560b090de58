"""How fast is a device on paper? Rates of its data sheet, and how much of them a model gets."""

import math
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from zerobubble.errors import UsageError
from zerobubble.formats.reading import parse_json, read_text, show_value

TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True)
class DeviceSpec:
    """Rates of a device as its data sheet gives them, and the assumed share that is reached.

    The defaults of the shares are what large matrix products and streaming kernels reach on
    today's GPUs, not more exact than some 15%: measure them on the device for exact plans.

    Attributes:
        name: of the device.
        bf16_tflops: dense matrix products of bfloat16 and float16, in TFLOP/s.
        fp32_tflops: matrix products of float32.
        memory_tb_per_s: bandwidth of its memory, in 1e12 bytes/s.
        memory_gb: size of its memory, in 1e9 bytes.
        link_gb_per_s: bandwidth to another device in one direction, in 1e9 bytes/s.
        link_latency_us: time until the first byte has arrived there.
        host_gb_per_s: bandwidth to the host in one direction, in 1e9 bytes/s.
        kernel_us: what the start of every kernel adds to its time.
        matmul_efficiency: share of the TFLOP/s that matrix products and attention reach.
        memory_efficiency: share of the bandwidth of the memory that kernels reach.
        link_efficiency: share of the bandwidth of a link that messages reach, to the host too.

    Raises:
        UsageError: a rate is not above 0, or a share not between 0 and 1.
    """

    name: str
    bf16_tflops: float
    fp32_tflops: float
    memory_tb_per_s: float
    memory_gb: float
    link_gb_per_s: float
    link_latency_us: float = 10.0
    host_gb_per_s: float = 31.5
    kernel_us: float = 3.0
    matmul_efficiency: float = 0.6
    memory_efficiency: float = 0.8
    link_efficiency: float = 0.8

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"device spec: name must be a text, not {show_value(self.name)}")
        for name, value in asdict(self).items():
            if name == "name":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"device spec: {name} must be a number, not {show_value(value)}")
            may_be_zero = name.endswith("_us")
            if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
                least = "at least 0" if may_be_zero else "above 0"
                raise UsageError(f"device spec: {name} must be {least}, not {value}")
            if name.endswith("_efficiency") and value > 1:
                raise UsageError(f"device spec: {name} must be at most 1, not {value}")


# NVIDIA H100 SXM5 data sheet: half of the TFLOP/s that it gives with sparsity; NVLink 900 GB/s
# both ways together, PCIe 5.0 128 GB/s.
H100 = DeviceSpec("h100", 989.4, 67.0, 3.35, 80.0, 450.0, host_gb_per_s=63.0)
# NVIDIA A100 80GB SXM data sheet; NVLink 600 GB/s both ways together, PCIe 4.0 64 GB/s.
A100 = DeviceSpec("a100", 312.0, 19.5, 2.039, 80.0, 300.0)
BUILT_IN = {spec.name: spec for spec in (H100, A100)}


def find_device_spec(text: str) -> DeviceSpec:
    """Give a device that is built in, or the one that a JSON file describes.

    Raises:
        UsageError: there is no such device or file, or the file is wrong; one line says where.

    >>> find_device_spec("h100").memory_gb
    80.0
    >>> find_device_spec("h1000")
    Traceback (most recent call last):
    zerobubble.errors.UsageError: unknown device 'h1000': use h100, a100 or a JSON file
    """
    if text in BUILT_IN:
        return BUILT_IN[text]
    if not text.endswith(".json") and not Path(text).is_file():
        raise UsageError(f"unknown device {text!r}: use {', '.join(BUILT_IN)} or a JSON file")
    values = parse_json(read_text(text), text)
    try:
        return _from_values(values)
    except UsageError as error:
        raise UsageError(f"{text}: {error}") from None


def _from_values(values: Any) -> DeviceSpec:
    names = [each.name for each in fields(DeviceSpec)]
    known = f"the keys are {', '.join(names)}"
    if not isinstance(values, dict):
        raise UsageError(f"a device spec is an object, not {show_value(values)}: {known}")
    if unknown := sorted(set(values) - set(names)):
        raise UsageError(f"unknown key {show_value(unknown[0])}: {known}")
    required = [each.name for each in fields(DeviceSpec) if each.default is MISSING]
    if missing := [name for name in required if name not in values]:
        raise UsageError(f"key {missing[0]!r} is missing: give {', '.join(required)}")
    return DeviceSpec(**values)
