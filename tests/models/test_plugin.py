"""An encoder from outside the package: one file and one entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENCODER = '''
from torch import nn

from tiss.models import ENCODERS, Encoder, EncoderOptions, Level


@ENCODERS.register("two_convolutions")
class TwoConvolutions(Encoder):
    """A strided convolution and another: the smallest encoder there is."""

    name, family, depth, channels, stride = "two_convolutions", "cnn", 2, 6, 8
    pyramid = (Level(6, 8),)
    contrast_blocks, pod_needs = None, (0, 1)

    def __init__(self, options: EncoderOptions) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 8, 8)
        self.second = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, images, needs=()):
        first = self.first(images).relu()
        second = self.second(first).relu()
        return (second,), tuple((first, second)[need] for need in self.resolve(needs))
'''

CHECK = """
from pathlib import Path

from tests.models.tester import check_architecture
from tiss.models import describe_encoder

info = describe_encoder("two_convolutions")
assert (info.family, info.default_decoder) == ("cnn", "linear")
check_architecture("two_convolutions", None, Path("."))
print("whole")
"""


def test_encoder_by_entry_point(tmp_path: Path) -> None:
    (tmp_path / "their_encoder.py").write_text(ENCODER)
    installed = tmp_path / "their_encoder-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: their-encoder\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[tiss.encoders]\ntwo_convolutions = their_encoder\n")
    paths = [str(tmp_path), str(Path(__file__).parents[2]), *filter(None, sys.path)]
    result = subprocess.run(
        [sys.executable, "-c", CHECK],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.stdout.strip() == "whole", result.stderr
