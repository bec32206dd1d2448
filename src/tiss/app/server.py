"""The web page: built with gradio, served on loopback unless it has a password."""

import errno
import ipaddress
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from tiss.app.steps import Steps, image_html, run_html
from tiss.data.images import image_size, read_image
from tiss.engine.predictor import resize
from tiss.errors import TissError
from tiss.report.render import render

MOST_BYTES = 20 * 2**20  # of an upload
MOST_PIXELS = 40_000_000
LONGEST = 1024  # longest side at which images are segmented and shown
WAITING = 200  # images in the queue; one more is refused
KEPT_IMAGES = 8
SESSIONS = 64  # visitors whose last answer is kept, with images: gradio's own 10,000 would fill the memory
PASSWORD = "TISS_APP_PASSWORD"
Page = Callable[[Any, Path], Any]
EMPTY = "<p>Drop an image on the left.</p>"


@dataclass(frozen=True)
class Place:
    """Where the page is served."""

    address: str = "127.0.0.1"
    port: int = 7860
    user: str = "tiss"
    password: str | None = None


def check_place(place: Place) -> None:
    """Refuses an open address without a password, and a port that is taken."""
    if not is_loopback(place.address) and not place.password:
        fault = f"{place.address}: others could reach it: set a password in {PASSWORD}"
        raise TissError(fault, setting="address")
    if not 0 < place.port < 65536:
        raise TissError(f"{place.port}: give a number from 1 to 65535", setting="port")
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((place.address, place.port))
        except OSError as error:
            reason = "in use already" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            fault = f"{place.port} at {place.address}: {reason}: choose another"
            raise TissError(fault, setting="port") from None


def is_loopback(address: str) -> bool:
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def serve(page_of: Page, place: Place, ready: Callable[[str], None], wait: bool = True) -> Callable[[], None]:
    """Serves the page; `ready` gets its address. Returns a function that stops it; with `wait`, once it has stopped.

    `page_of` makes it of gradio's module and the folder that uploads go to.
    """
    check_place(place)
    temporary = tempfile.TemporaryDirectory(prefix="tiss-app-")
    os.environ["GRADIO_TEMP_DIR"] = temporary.name  # uploads go nowhere else
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    page = page_of(import_gradio(), Path(temporary.name))
    page.queue(max_size=WAITING, default_concurrency_limit=1)
    page.launch(
        server_name=place.address,
        server_port=place.port,
        auth=(place.user, place.password) if place.password else None,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size=MOST_BYTES,
        state_session_capacity=SESSIONS,
        show_error=False,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        footer_links=[],
        head=render("app_head.html"),
    )
    ready(f"http://{place.address}:{place.port}")

    def stop() -> None:
        page.close(verbose=False)
        temporary.cleanup()

    if wait:
        try:
            page.block_thread()
        finally:
            stop()
    return stop


def build(gradio: Any, steps: Steps, folder: Path) -> Any:
    """The page: an image, a slider through the steps, classes to tick, old and new side by side, and the run."""
    last = len(steps) - 1
    opened = lru_cache(KEPT_IMAGES)(read_upload)  # the same object again: its masks are kept
    everything = list(dict.fromkeys(name for names in steps.classes for name in names[1:]))

    def update(path: str | None, step: float, shown: list[str], beside: bool) -> tuple[str, str]:
        number = min(last, max(0, int(step)))
        if path is None:
            return EMPTY, ""
        try:
            image = opened(path)
        except TissError as error:
            raise gradio.Error(str(error), print_exception=False) from None
        pixels = image.permute(1, 2, 0).numpy()

        def at(number: int) -> str:
            mask = steps.mask(number, image)
            return image_html(steps.title(number), pixels, mask, steps.classes[number], shown)

        return at(number), at(number - 1) if beside and number > 0 else ""

    # the class inside of which the style sheet applies, without gradio's own rules for tables
    tiss: dict[str, Any] = {"elem_classes": ["tiss"], "apply_default_css": False}
    with gradio.Blocks(title="tiss", analytics_enabled=False, delete_cache=(600, 600)) as page:
        gradio.Markdown(
            f"# {folder.resolve().name}\n{len(steps)} {'steps' if last else 'step'}, {len(everything)} classes"
        )
        with gradio.Tab("Segment"), gradio.Row():
            with gradio.Column(scale=1):
                form = {"type": "filepath", "image_mode": None, "sources": ["upload", "clipboard"]}
                image = gradio.Image(**form, label="image", elem_id="image")
                hide = {"visible": last > 0}
                step = gradio.Slider(0, max(last, 1), last, step=1, label="step", elem_id="step", **hide)
                beside = gradio.Checkbox(False, label="old and new side by side", elem_id="beside", **hide)
                shown = gradio.CheckboxGroup(everything, value=everything, label="classes", elem_id="classes")
            with gradio.Column(scale=2), gradio.Row():
                before = gradio.HTML("", elem_id="before", **tiss)
                now = gradio.HTML(EMPTY, elem_id="now", **tiss)
        with gradio.Tab("Run"):
            gradio.HTML(run_html(folder, steps), elem_id="run", **tiss)
        for component in (image, step, shown, beside):
            component.change(update, [image, step, shown, beside], [now, before], show_progress="minimal")
    return page


def read_upload(path: str) -> Tensor:
    """An uploaded image uint8 3 × H × W, resized for the page; errors name no file of the server."""
    try:
        width, height = check_upload(path)
        image = read_image(path)[None]
        return resize(image, max(1, round(min(width, height) * min(1, LONGEST / max(width, height)))))[0]
    except TissError as error:
        raise TissError(str(error).replace(path, "the image")) from None


def check_upload(path: str) -> tuple[int, int]:
    """Width and height of an uploaded image, refused where it is too large."""
    if os.path.getsize(path) > MOST_BYTES:
        raise TissError(f"{path}: more than {MOST_BYTES >> 20} MB")
    width, height = image_size(path)
    if width * height > MOST_PIXELS:
        raise TissError(f"{path}: {width} × {height} pixels are more than {MOST_PIXELS:,}")
    return width, height


def import_gradio() -> Any:
    """gradio, or an error that says how to install it."""
    try:
        import gradio
    except ImportError as error:
        raise TissError(f"the page needs gradio: pip install 'tiss[app]' ({error})") from error
    return gradio
