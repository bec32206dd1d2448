"""The page of `tiss app --teach`: open images, paint a class, teach, see what changes, correct, save.

The page is one script (`report/templates/app_teach.js`) that sends its wishes to `Desk.act`. There is one desk: whoever
opens the page sees the same images, also after a reload.
"""

import base64
import io
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tiss.app.server import Page, check_upload
from tiss.errors import TissError
from tiss.palette import class_colours, overlay
from tiss.report.render import embed, read_template, render
from tiss.user.items import find_images
from tiss.user.teach import Mask, Opened, Teaching

MOST_IMAGES = 64  # opened at a time
TILE = 200  # pixels, longest side of a small image
PLAIN_NAME = re.compile(r"\w[\w .-]{0,63}")
NO_CHANGE = 255
WISHES = ("open", "close", "show", "tile", "paint", "start", "undo", "propose", "teach", "save")


class Desk:
    """What the page asks for, by name, and what it gets: values that JSON takes. A fault is one line, `error`."""

    def __init__(self, teaching: Teaching, out: Path, uploads: Path) -> None:
        """`out` is the folder for what is saved, `uploads` the only one whose files a visitor can name."""
        self.teaching, self.out, self.uploads = teaching, out, uploads
        self.lock = threading.Lock()
        self.round = 0  # of teaching; the page fetches its images again when it has changed
        self.result = ""  # of the last one, as HTML

    def act(self, wish: dict[str, Any]) -> dict[str, Any]:
        """One wish, {"do": its name, …}. Every answer has the state of the desk; {} asks for nothing else."""
        values = dict(wish)
        name = values.pop("do", "")
        try:
            found = None
            if name in WISHES:
                with self.lock:
                    found = getattr(self, name)(**values)
            return self.state() | (found or {})
        except TissError as error:
            return {"error": error.message}

    def state(self) -> dict[str, Any]:
        """The images in their order, and what was taught."""
        images = [self._describe(one) for one in list(self.teaching.images.values())]
        taught = {"round": self.round, "class_name": self.teaching.class_name, "result": self.result}
        return {"images": images, **taught}

    def _describe(self, one: Opened) -> dict[str, Any]:
        label = one.label
        painted = "" if label is None else f"{label.mean():.1%} painted" if label.any() else "not in it"
        ready = one.future.done()
        changed = f"{one.changed.mean():.1%} changed" if ready and one.now is not None else ""
        return {
            "name": one.name,
            "painted": painted,
            "ready": ready,
            "changed": changed,
            "undo": len(one.history),
        }

    # What the page asks for

    def open(self, path: str) -> None:
        """Opens a file that was uploaded."""
        file = Path(path).resolve()
        if not file.is_relative_to(self.uploads.resolve()) or not file.is_file():
            raise TissError("only uploaded files can be opened")
        if len(self.teaching.images) >= MOST_IMAGES:
            raise TissError(f"{MOST_IMAGES} images are open: close some first")
        try:
            check_upload(str(file))
            self.teaching.open(file)
        except TissError as error:
            raise TissError(error.message.replace(str(file), file.name)) from None

    def close(self, image: str) -> None:
        self.teaching.close(image)

    def show(self, image: str) -> dict[str, Any]:
        """An image, what both models say of it and what is painted, as layers of one size."""
        one = self.teaching._image(image)
        found = self._paint(one) | {"size": one.image.shape[1::-1], "colour": f"rgb{self._colour()}"}
        found["photo"] = to_url(Image.fromarray(one.image), "JPEG", quality=90)
        if one.future.done():
            before, now = (self.teaching.predict(image, which) for which in (True, False))
            changed = np.where(one.changed, now.mask, NO_CHANGE).astype(np.uint8)
            colours = now.colours
            found |= {
                "before": layer(before.mask, colours, 0),
                "now": layer(now.mask, colours, 0),
                "changed": layer(changed, colours, NO_CHANGE),
                "legend": render(
                    "app_legend.html", legend=[(colours[now.classes.index(k)], k) for k in now.shares()]
                ),
            }
        return found

    def tile(self, image: str) -> dict[str, Any]:
        """Two small images side by side: before and now, or the image and what the old model says of it."""
        one = self.teaching._image(image)
        small = Image.fromarray(one.image)
        small.thumbnail((TILE, TILE))
        shown: list[Any] = [small]
        for before in ((True, False) if self.round else (True,)) if one.future.done() else ():
            found = self.teaching.predict(image, before)
            mask = np.asarray(Image.fromarray(found.mask).resize(small.size, Image.Resampling.NEAREST))
            shown.append(overlay(np.asarray(small), mask, found.colours))
        return {"pair": [str(embed(drawn)) for drawn in shown[-2:]]}

    def paint(self, image: str, mask: str | None) -> dict[str, Any]:
        """What is painted now, as a PNG; an empty text: the class is not in the image; null: it says nothing."""
        one = self.teaching._image(image)
        shape = one.image.shape[:2]
        found: Mask | None = None
        if mask is not None:
            found = read_layer(mask, shape) if mask else np.zeros(shape, bool)
        self.teaching.paint(image, found)
        return self._paint(one)

    def start(self, image: str) -> dict[str, Any]:
        """Paints what the model says is the class, for the user to correct."""
        teaching = self.teaching
        if teaching.taught is None:
            raise TissError("teach first: then its answer can be corrected")
        teaching.paint(
            image, teaching.predict(image).mask == teaching.taught.classes.index(teaching.class_name)
        )
        return self._paint(teaching._image(image))

    def undo(self, image: str) -> dict[str, Any]:
        self.teaching.undo(image)
        return self._paint(self.teaching._image(image))

    def propose(self, image: str, x: float, y: float, size: float) -> dict[str, Any]:
        found = self.teaching.propose(image, int(x), int(y), float(size))
        return {"proposal": layer(found.astype(np.uint8), [(0, 0, 0), (255, 255, 255)], 0)}

    def teach(self, class_name: str) -> None:
        result = self.teaching.teach(class_name)
        colours = class_colours(len(result.classes))
        rows = list(zip(colours, result.classes, strict=True))
        self.result = render("app_taught.html", result=result, rows=rows)
        self.round += 1

    def save(self, name: str) -> dict[str, Any]:
        """Writes the model and its labels below `out`."""
        if not PLAIN_NAME.fullmatch(name):
            raise TissError(f"{name or 'no name'}: give a plain name of letters, digits, '-', '_' and '.'")
        if (self.out / name).exists() or (self.out / f"{name}-labels").exists():
            raise TissError(f"{name}: exists already: choose another name")
        fact = self.teaching.save(self.out / name, self.out / f"{name}-labels")
        return {"saved": f"{fact}: saved as {name}, its labels as {name}-labels"}

    def _paint(self, one: Opened) -> dict[str, Any]:
        colours = [(0, 0, 0), self._colour()]
        return {"paint": None if one.label is None else layer(one.label.astype(np.uint8), colours, 0)}

    def _colour(self) -> tuple[int, int, int]:
        """The class's colour: that of the next one until it is known."""
        model = self.teaching.taught
        count = len(self.teaching.model.classes)
        known = model.classes.index(self.teaching.class_name) if model else count
        return class_colours(max(count, known) + 1)[known]


def to_url(image: Image.Image, kind: str, **how: Any) -> str:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"


def layer(mask: np.ndarray, colours: Any, clear: int) -> str:
    """Class numbers H × W as a PNG in their colours; those equal to `clear` are transparent."""
    image = Image.fromarray(mask)
    image.putpalette([value for colour in colours for value in colour] + [0] * 3 * (256 - len(colours)))
    return to_url(image, "PNG", transparency=clear)


def read_layer(url: str, shape: tuple[int, int]) -> Mask:
    """Where a PNG from the page is painted; it must have the image's size."""
    try:
        data = base64.b64decode(url.partition(",")[2], validate=True)
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if image.size == shape[::-1]:
                return np.asarray(image.convert("RGBA"))[..., 3] > 127
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise TissError("what was painted could not be read: reload the page") from error
    raise TissError("what was painted has another size than the image: reload the page")


def open_teaching(model: str, images: str | None, device: str = "auto") -> Teaching:
    """A model to teach, with the first of `images` open."""
    teaching = Teaching(model, device=device)
    if images:
        teaching.open(*(item.path for item in find_images([images])[:MOST_IMAGES]))
    return teaching


def page_of(teaching: Teaching, out: Path) -> Page:
    """The page; what is saved goes below `out`."""

    def page(gradio: Any, uploads: Path) -> Any:
        desk = Desk(teaching, out, uploads)

        def act(wish: Any) -> dict[str, Any]:
            return desk.act(wish)

        name = teaching.source.folder.resolve().name
        with gradio.Blocks(title="tiss", analytics_enabled=False, fill_width=True) as blocks:
            gradio.HTML(
                render("app_teach.html", model=name),
                elem_id="teach",
                elem_classes=["tiss"],
                apply_default_css=False,
                js_on_load=read_template("app_teach.js"),
                server_functions=[act],
            )
        return blocks

    return page
