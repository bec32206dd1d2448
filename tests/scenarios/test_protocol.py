from __future__ import annotations

import pytest

from tiss.config import ProtocolConfig
from tiss.errors import TissError
from tiss.scenarios.protocol import resolve_protocol


def test_published_variants() -> None:
    rows = {name: resolve_protocol(name) for name in ("mib", "plop", "paper")}
    assert [row.border for row in rows.values()] == ["background", "ignore", "ignore"]
    assert [row.unseen for row in rows.values()] == ["ignore", "background", "background"]
    assert [row.test_images for row in rows.values()] == ["seen", "seen", "all"]
    assert [row.headline for row in rows.values()] == ["without", "with", "both"]


def test_parts_can_be_set_alone() -> None:
    protocol = resolve_protocol(ProtocolConfig("mib", border="ignore", test_images="all", other="background"))
    assert (protocol.border, protocol.unseen, protocol.test_images) == ("ignore", "ignore", "all")
    assert protocol.other == "background"
    assert protocol.headline == "without"


def test_unknown_name_suggests() -> None:
    with pytest.raises(TissError, match="did you mean 'plop'"):
        resolve_protocol("plob")
