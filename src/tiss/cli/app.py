"""A page to try a model: drop an image and see it segmented, and slide through the steps to see what the model knew
at each. Hover over the image to read the class of a pixel, tick classes off and on, put old and new side by side,
and look at the run's curves and tables. The slider follows a run's steps, or a model's parents as far as their
folders exist. Only this machine can open the page, unless --address says otherwise and a password is set.

Examples:
  tiss app third
  tiss app runs/demo/tiss-seed0 --port 8000
  TISS_APP_PASSWORD=... tiss app third --address 0.0.0.0
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tiss.config import REQUIRED, setting


@dataclass(frozen=True)
class Options:
    model: str = setting(REQUIRED, "run folder or model folder", positional=True)
    address: str = setting("127.0.0.1", "address to serve at; any but loopback needs a password")
    port: int = setting(7860, "port to serve at")
    user: str = setting("tiss", "name to log in with, if there is a password")
    password: str | None = setting(None, "better in TISS_APP_PASSWORD: others can see command lines")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")


def run(options: Options) -> int:
    from tiss.app.server import PASSWORD, Place, check_place, import_gradio, serve
    from tiss.app.steps import open_steps

    password = options.password or os.environ.get(PASSWORD)
    place = Place(options.address, options.port, options.user, password)
    check_place(place)
    import_gradio()
    steps = open_steps(options.model, options.device)
    try:
        serve(
            steps,
            Path(options.model).expanduser(),
            place,
            lambda url: print(f"{url}  (stop with Ctrl-C)", flush=True),
        )
    except KeyboardInterrupt:
        print("stopped")
    return 0
