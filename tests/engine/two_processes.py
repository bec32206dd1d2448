"""What test_distributed runs in several processes, by torchrun."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.methods.toy import toy_config
from tiss.engine.progress import Reporter
from tiss.engine.run import run_experiment


def run_cases(cases: dict[str, dict[str, Any]], folder: Path) -> None:
    """Runs every case, into `folder`/<name>."""
    for name, case in cases.items():
        run_experiment(toy_config(**case, out=str(folder / name)), reporter=Reporter())


if __name__ == "__main__":
    run_cases(json.loads(sys.argv[1]), Path(sys.argv[2]))
