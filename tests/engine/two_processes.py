"""Cases of the tests, run here: `torchrun -m tests.engine.two_processes CASES.json` runs them in several processes."""

from __future__ import annotations

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
    given = json.loads(Path(sys.argv[1]).read_text())
    run_cases(given["cases"], Path(given["folder"]))
