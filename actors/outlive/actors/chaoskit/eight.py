"""The eight faults by name, and which of them can be played here."""

import importlib.util
from collections.abc import Sequence
from typing import Final

from outlive.actors.chaoskit import faults, faults_of_models
from outlive.actors.chaoskit.exam import Fault, Result

EIGHT: Final[Sequence[Fault]] = (
    Fault("llm-times-out", "The model times out at step 3", faults_of_models.llm_times_out, needs_agents=True),
    Fault("answer-lost", "A tool succeeds and its answer is lost", faults.answer_lost),
    Fault("worker-dies", "A worker dies before it writes the checkpoint", faults.worker_dies),
    Fault("message-twice", "The same message comes twice", faults.message_twice),
    Fault("cancelled-before-risk", "The user cancels before a risky action", faults.cancelled_before_risk),
    Fault("model-changed", "The model is another one at the resume", faults_of_models.model_changed, needs_agents=True),
    Fault("throttled", "The service throttles for long", faults.throttled),
    Fault("two-workers", "Two workers have the same task", faults.two_workers),
)
"""In the order in which they are told."""

NEEDS: Final = "its task is an agent, which needs pydantic-ai. Run: pip install 'outlive[agents]', or leave it out: --without-agents"


def agents_are_there() -> bool:
    """Whether the extra ``agents`` is installed."""
    return importlib.util.find_spec("pydantic_ai") is not None


def not_played(fault: Fault) -> Result:
    """Return the result of a fault that cannot be played here."""
    return Result(fault=fault.name, title=fault.title, ok=False, seconds=0.0, problem=NEEDS)
