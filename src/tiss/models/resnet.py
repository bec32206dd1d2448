"""ResNet with bottlenecks, output stride 16 or 8, under torchvision's (and timm's) parameter names.

A block is one bottleneck; its feature is taken after the activation. The features `stage1` … `stage4` are
those of each stage's last bottleneck before its activation: what local POD compares.
"""

from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from tiss.models.encoder import ENCODERS, Encoder, EncoderOptions, Level, Maps, Need, Tuned
from tiss.models.layers import DropPath, drop_rates


@dataclass(frozen=True)
class ResNetSettings:
    """The shape of one residual network."""

    layers: tuple[int, int, int, int]
    width: int = 64
    output_stride: int = 16
    early_stride: bool = False  # v1: a stage's stride is in its first 1×1 convolution, not in the 3×3
    hub: str | None = None
    tuned: Tuned = Tuned("sgd", lr=1e-2, step_lr=1e-3, encoder_lr=0.1)


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 convolutions beside a shortcut; returns the sum before its activation."""

    def __init__(
        self, channels: int, width: int, stride: int, dilation: int, early_stride: bool, drop_path: float
    ) -> None:
        super().__init__()
        first, second = (stride, 1) if early_stride else (1, stride)
        self.conv1 = nn.Conv2d(channels, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, second, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.drop_path = DropPath(drop_path)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))

    def forward(self, inputs: Tensor) -> Tensor:
        branch = F.relu(self.bn1(self.conv1(inputs)))
        branch = F.relu(self.bn2(self.conv2(branch)))
        return self.downsample(inputs) + self.drop_path(self.bn3(self.conv3(branch)))


class ResNet(Encoder):
    """Stem and four stages; strides beyond the output stride become dilations."""

    family = "cnn"
    contrast_blocks = None
    default_decoder = "deeplabv3"
    named_needs = ("stage1", "stage2", "stage3", "stage4")
    pod_needs = named_needs

    def __init__(self, name: str, settings: ResNetSettings, options: EncoderOptions) -> None:
        super().__init__()
        self.name, self.hub, self.tuned = name, settings.hub, settings.tuned
        self.depth = sum(settings.layers)
        self.stride = settings.output_stride
        self.decoder_channels = 4 * settings.width
        width = settings.width
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        rates = iter(drop_rates(options.drop_path, self.depth))
        channels, total, dilation = width, 4, 1
        levels = []
        for stage, count in enumerate(settings.layers):
            stride, before = (1 if stage == 0 else 2), dilation
            if total * stride > settings.output_stride:
                stride, dilation = 1, dilation * 2
            total *= stride
            blocks = nn.Sequential()
            for index in range(count):
                # the first block of a dilated stage still sees the resolution of the stage before
                strides = (stride, before) if index == 0 else (1, dilation)
                blocks.append(Bottleneck(channels, width, *strides, settings.early_stride, next(rates)))
                channels = 4 * width
            self.add_module(f"layer{stage + 1}", blocks)
            levels.append(Level(channels, total))
            width *= 2
        self.channels = channels
        self.pyramid = tuple(levels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Maps, Maps]:
        wanted = self.resolve(needs)
        maps = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, 2, padding=1)
        found: dict[Need, Tensor] = {}
        pyramid = []
        index = 0
        for stage in self.named_needs:
            for block in self.get_submodule(f"layer{stage[-1]}").children():
                before = self.run_block(block, maps)
                maps = F.relu(before)
                if index in wanted:
                    found[index] = maps
                index += 1
            found[stage] = before
            pyramid.append(maps)
        return tuple(pyramid), tuple(found[need] for need in wanted)


# `_v1` has the strides of the first publication, `_os8` output stride 8 instead of 16
for name, layers in (("resnet50", (3, 4, 6, 3)), ("resnet101", (3, 4, 23, 3))):
    for version, hub in (("", f"timm/{name}.a1_in1k"), ("_v1", None)):
        for ending, stride in (("", 16), ("_os8", 8)):
            full = name + version + ending
            settings = ResNetSettings(layers, 64, stride, early_stride=version == "_v1", hub=hub)
            ENCODERS.register(full)(partial(ResNet, full, settings))
MICRO = ResNetSettings((1, 1, 2, 1), width=2)
ENCODERS.register("resnet_micro")(partial(ResNet, "resnet_micro", MICRO))
