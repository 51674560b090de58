"""How does a schedule run for real? Stages, transport, executor, optimizer: one Pipeline."""

from zerobubble.runtime.batch import Whole
from zerobubble.runtime.loss_scaler import LossScaler
from zerobubble.runtime.offload import Offload
from zerobubble.runtime.optimizer import PipelineOptimizer
from zerobubble.runtime.pipeline import Pipeline

__all__ = ["LossScaler", "Offload", "Pipeline", "PipelineOptimizer", "Whole"]
