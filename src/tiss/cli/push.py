"""Uploads a model folder: config.json, model.safetensors and a card with its scenario, steps, scores, data and
limits. Afterwards anyone can load it with tiss.from_pretrained("OWNER/NAME") and extend it with `tiss extend
OWNER/NAME`. The access token is the hub's own (`hf auth login` or HF_TOKEN); HF_ENDPOINT names another hub.

Examples:
  tiss push third my-team/forklifts
  tiss push runs/voc-15-1-overlapped-tiss-seed0/step-5 my-team/voc-15-1 --private
"""

from __future__ import annotations

from dataclasses import dataclass

from tiss.config import REQUIRED, setting


@dataclass(frozen=True)
class Options:
    model: str = setting(REQUIRED, "model folder or run folder", positional=True)
    name: str = setting(REQUIRED, "OWNER/NAME on the hub", positional=True)
    private: bool = setting(False, "make the repository private")
    message: str = setting("Add model", "commit message")


def run(options: Options) -> int:
    from tiss.user.card import push_model
    from tiss.user.model_source import find_source

    address = push_model(find_source(options.model), options.name, options.private, options.message)
    print(f"{address}\nload it with tiss.from_pretrained({options.name!r})")
    return 0
