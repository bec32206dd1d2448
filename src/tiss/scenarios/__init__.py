"""Which classes and images come when; label numbers to channels."""

from tiss.scenarios.scenario import Scenario, Step, load_scenario
from tiss.scenarios.split import PROTOCOLS, Protocol, Split, resolve_protocol
from tiss.scenarios.task import parse_order, parse_task

__all__ = [
    "PROTOCOLS",
    "Protocol",
    "Scenario",
    "Split",
    "Step",
    "load_scenario",
    "parse_order",
    "parse_task",
    "resolve_protocol",
]
