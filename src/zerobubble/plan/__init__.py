"""From a profile and a memory limit to a plan: partition, placement, schedule and forecast."""

from zerobubble.plan.data import Forecast, Plan

__all__ = ["Forecast", "Plan"]
