"""Pipeline-parallel training for any PyTorch model without idle time."""

from zerobubble.costs import Costs
from zerobubble.errors import PipelineError, ScheduleError, UsageError, ZeroBubbleError
from zerobubble.ir import Kind, Op, Placement, Schedule
from zerobubble.schedules import build
from zerobubble.simulate import Timeline, simulate
from zerobubble.verify import verify

__all__ = [
    "Costs",
    "Kind",
    "Op",
    "PipelineError",
    "Placement",
    "Schedule",
    "ScheduleError",
    "Timeline",
    "UsageError",
    "ZeroBubbleError",
    "build",
    "simulate",
    "verify",
]
