"""How does a schedule run for real? Stages, transport, executor, optimizer: one Pipeline."""

from zerobubble.runtime.optimizer import PipelineOptimizer
from zerobubble.runtime.pipeline import Pipeline

__all__ = ["Pipeline", "PipelineOptimizer"]
