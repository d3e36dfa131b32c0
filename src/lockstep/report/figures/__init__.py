"""The figures of a report: each from the results alone, left out where it has nothing to show."""

from __future__ import annotations

from lockstep.report.figure import Figure
from lockstep.report.figures.beyond import beyond_figures
from lockstep.report.figures.commonsense import commonsense_figures
from lockstep.report.figures.comparison import comparison_figures
from lockstep.report.figures.inference import inference_figures
from lockstep.report.figures.lengths import length_figures
from lockstep.report.figures.memory import memory_figures
from lockstep.report.figures.model_state import state_figures
from lockstep.report.figures.pareto import pareto_figures
from lockstep.report.figures.scaling import scaling_figures
from lockstep.report.figures.style import Look
from lockstep.report.figures.tasks import task_figures
from lockstep.report.figures.training import training_figures
from lockstep.report.figures.tuning import tuning_figures
from lockstep.report.figures.where_time_goes import time_figures
from lockstep.report.results import Measurements, Results

__all__ = ["figures"]


def figures(results: Results, measurements: Measurements) -> list[Figure]:
    """All that can be drawn, in the order in which they are best read: what is better, how it came, what it costs."""
    look = Look(results)
    return [
        *comparison_figures(results, look),
        *training_figures(results, measurements, look),
        *pareto_figures(results, measurements, look),
        *inference_figures(results, measurements, look),
        *time_figures(results, measurements, look),
        *length_figures(results, look),
        *task_figures(results, look),
        *beyond_figures(results, measurements, look),
        *commonsense_figures(results, look),
        *scaling_figures(results),
        *memory_figures(results, look),
        *state_figures(results),
        *tuning_figures(results, look),
    ]
