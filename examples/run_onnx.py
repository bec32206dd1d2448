"""Runs a model that `tiss export` wrote. Needs neither tiss nor torch: pip install onnxruntime numpy pillow

python run_onnx.py second.onnx photo.jpg overlay.png
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model, photo, out = sys.argv[1:]
about = json.loads(Path(model).with_suffix(".labels.json").read_text(encoding="utf-8"))
session = onnxruntime.InferenceSession(model)

image = ImageOps.exif_transpose(Image.open(photo)).convert("RGB")
factor = about["size"] / min(image.size)  # the shorter side at which the model is best
small = image.resize([round(side * factor) for side in image.size], Image.Resampling.BILINEAR)
pixels = np.asarray(small).transpose(2, 0, 1)[None]  # 1 × 3 × H × W, uint8, RGB: the model normalizes

(labels,) = session.run(["labels"], {"images": pixels})  # 1 × H × W, uint8, index into the classes
mask = Image.fromarray(labels[0]).resize(image.size, Image.Resampling.NEAREST)

colours = np.array(about["colours"], np.uint8)[np.asarray(mask)]
shown = np.where(np.asarray(mask)[..., None] > 0, colours // 2 + np.asarray(image) // 2, image)
Image.fromarray(shown.astype(np.uint8)).save(out)
for index, name in enumerate(about["classes"]):
    print(f"{name}: {np.mean(np.asarray(mask) == index):.1%}")
