"""Pipeline-parallel training for any PyTorch model without idle time.

The names that need torch (``Pipeline``, ``PipelineOptimizer``, ``Whole``, ``split_report``,
``splitting``) and
what only a search needs are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zerobubble.costs import Costs
from zerobubble.errors import PipelineError, ScheduleError, UsageError, ZeroBubbleError
from zerobubble.ir import Kind, Op, Placement, Schedule
from zerobubble.plan import Plan
from zerobubble.plan import make_plan as plan
from zerobubble.schedules import build
from zerobubble.schedules.building_block import from_building_block
from zerobubble.search import search
from zerobubble.simulate import Timeline, simulate
from zerobubble.verify import verify

if TYPE_CHECKING:
    from zerobubble.autograd import split_report, splitting
    from zerobubble.runtime import Pipeline, PipelineOptimizer, Whole
    from zerobubble.search import SearchResult

__all__ = [
    "Costs",
    "Kind",
    "Op",
    "Pipeline",
    "PipelineError",
    "PipelineOptimizer",
    "Placement",
    "Plan",
    "Schedule",
    "ScheduleError",
    "SearchResult",
    "Timeline",
    "UsageError",
    "Whole",
    "ZeroBubbleError",
    "build",
    "from_building_block",
    "plan",
    "search",
    "simulate",
    "split_report",
    "splitting",
    "verify",
]


_TORCH_NAMES = {
    "Pipeline": "zerobubble.runtime",
    "PipelineOptimizer": "zerobubble.runtime",
    "Whole": "zerobubble.runtime",
    "split_report": "zerobubble.autograd",
    "splitting": "zerobubble.autograd",
}


def __getattr__(name: str) -> Any:
    if name == "SearchResult":
        return getattr(import_module("zerobubble.search.engine"), name)
    if name in _TORCH_NAMES:
        try:
            return getattr(import_module(_TORCH_NAMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"zerobubble.{name} needs PyTorch: pip install 'zerobubble[torch]'", name="torch"
            ) from None
    raise AttributeError(f"module 'zerobubble' has no attribute {name!r}")
