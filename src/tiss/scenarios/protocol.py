"""The published ways to make labels, choose test images and average, one name each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tiss.config import ProtocolConfig
from tiss.errors import TissError, suggest

Place = Literal["ignore", "background"]


@dataclass(frozen=True)
class Protocol:
    """A protocol with every part decided."""

    name: str
    border: Place  # what the void border (255) becomes in training
    unseen: Place  # what a class not seen yet becomes in the test
    test_images: Literal["all", "seen"]  # at a step: all of them, or those with a seen class
    headline: Literal[
        "without", "with", "both"
    ]  # the mean that the source prints: without or with the background
    other: Place | None = None  # label 0 in the test where it is no real class; None: what the data set says


PROTOCOLS = {
    "mib": Protocol("mib", border="background", unseen="ignore", test_images="seen", headline="without"),
    "plop": Protocol("plop", border="ignore", unseen="background", test_images="seen", headline="with"),
    "paper": Protocol("paper", border="ignore", unseen="background", test_images="all", headline="both"),
}


def resolve_protocol(config: ProtocolConfig | Protocol | str) -> Protocol:
    """The named variant with the parts that `config` sets by themselves.

    >>> resolve_protocol(ProtocolConfig("mib", unseen="background")).unseen
    'background'
    """
    if isinstance(config, Protocol):
        return config
    if isinstance(config, str):
        config = ProtocolConfig(config)
    if config.name not in PROTOCOLS:
        raise TissError(f"--protocol: {suggest(config.name, PROTOCOLS, 'protocol')}")
    protocol = PROTOCOLS[config.name]
    return replace(
        protocol,
        border=config.border or protocol.border,
        unseen=config.unseen or protocol.unseen,
        test_images=config.test_images or protocol.test_images,
        other=config.other or protocol.other,
    )
