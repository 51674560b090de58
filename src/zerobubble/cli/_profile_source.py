"""Of which profile does a command plan: one that was written, or an estimate for a device?"""

from collections.abc import Sequence

from zerobubble.errors import UsageError
from zerobubble.profile import Profile


def read_or_estimate(
    profile: str,
    model: str,
    config: str,
    device_spec: str,
    microbatch_sizes: Sequence[int] | None,
    sequence: int | None,
    validate: str,
) -> Profile:
    """Read a profile from a file, or estimate one of a model without the device.

    Raises:
        UsageError: there is not exactly one of ``profile`` and ``model``, or what they name is
            missing or wrong.
    """
    if bool(profile) == bool(model):
        raise UsageError(
            "plan needs either --profile, a file that zerobubble profile has written, or --model "
            "with --device-spec"
        )
    if profile:
        if device_spec:
            raise UsageError("--device-spec is for --model: a profile has times of its own")
        if config:
            raise UsageError("--config is for --model: a profile has layers of its own")
        from zerobubble.profile.file import load

        return load(profile)
    if not device_spec:
        raise UsageError(
            "--model needs --device-spec h100, a100 or a file; or measure with zerobubble profile "
            "and give --profile"
        )
    return _estimate(model, config, device_spec, microbatch_sizes or (1, 2, 4), sequence, validate)


def _estimate(
    model: str,
    config: str,
    device_spec: str,
    microbatch_sizes: Sequence[int],
    sequence: int | None,
    validate: str,
) -> Profile:
    from zerobubble.profiling import estimate, find_device_spec
    from zerobubble.train.config import ModelConfig
    from zerobubble.train.model_source import find_model

    settings = ModelConfig() if sequence is None else ModelConfig(sequence=sequence)
    spec = find_device_spec(device_spec)
    return estimate(find_model(model, config, settings), spec, microbatch_sizes, validate=validate)
