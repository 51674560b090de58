"""What does every layer of a model cost? Measured on devices, or estimated without any."""

from zerobubble.profiling.device_spec import A100, H100, DeviceSpec, find_device_spec
from zerobubble.profiling.estimate import estimate
from zerobubble.profiling.measure import measure

__all__ = ["A100", "H100", "DeviceSpec", "estimate", "find_device_spec", "measure"]
