"""Which classes and images come when; label numbers to channels."""

from tiss.data.base import Split
from tiss.scenarios.scenario import PROTOCOLS, Scenario, Step, load_scenario, resolve_protocol
from tiss.scenarios.task import PARTITIONED, id_hash, parse_order, parse_task, read_lists
