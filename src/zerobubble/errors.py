"""Which errors can a user meet?

::

    ZeroBubbleError
    ├── ScheduleError      a schedule breaks a rule, or cannot be built for these numbers
    ├── UsageError         an argument, a flag, a file or a configuration is wrong
    └── PipelineError      a training run cannot go on: names rank, op and the original error

Commands end with status 1 on a ``ScheduleError`` or ``PipelineError`` and 2 on a ``UsageError``.
Internal invariants use ``assert``.
"""


class ZeroBubbleError(Exception):
    """Base of every error that this package raises on purpose."""


class ScheduleError(ZeroBubbleError):
    """A schedule breaks a rule; the message names rule, rank, op and the fix."""


class UsageError(ZeroBubbleError, ValueError):
    """An argument, flag, file or configuration is wrong; the message says what to write instead."""


class PipelineError(ZeroBubbleError, RuntimeError):
    """A run cannot go on; the message names the rank, the op and the original error."""
