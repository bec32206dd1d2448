"""The web page: built with gradio, served on loopback unless a password guards it."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tiss.app.stations import Stations, picture_key, shrink
from tiss.app.view import STYLE, history_html, run_html, view
from tiss.data.images import picture_size, read_image
from tiss.errors import TissError

MOST_BYTES = 20 * 2**20  # of an upload
MOST_PIXELS = 40_000_000
LONGEST = 1024  # side at which pictures are segmented and shown
WAITING = 200  # pictures in the queue; one more is refused
SESSIONS = (
    64  # visitors whose last answer is kept, pictures and all: gradio's own 10,000 would fill the memory
)
PASSWORD = "TISS_APP_PASSWORD"
EMPTY = "<p>Drop a picture on the left.</p>"


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
        raise TissError(
            f"--address {place.address}: others could reach it: set a password in {PASSWORD} or --password"
        )
    if not 0 < place.port < 65536:
        raise TissError(f"--port {place.port}: take a number from 1 to 65535")
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((place.address, place.port))
        except OSError as error:
            reason = "in use already" if error.errno == 98 else (error.strerror or str(error))
            raise TissError(f"--port {place.port} at {place.address}: {reason}: choose another") from None


def is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def serve(
    stations: Stations, folder: Path, place: Place, ready: Callable[[str], None], wait: bool = True
) -> Callable[[], None]:
    """Serves the page; `ready` gets its address. Returns a function that stops it (after it stopped, with `wait`)."""
    check_place(place)
    temporary = tempfile.TemporaryDirectory(prefix="tiss-app-")
    os.environ["GRADIO_TEMP_DIR"] = temporary.name  # uploads go nowhere else
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    gradio = import_gradio()
    page = build(gradio, stations, folder)
    page.queue(max_size=WAITING, default_concurrency_limit=1)
    guard = None if is_loopback(place.address) and not place.password else (place.user, place.password)
    page.launch(
        server_name=place.address,
        server_port=place.port,
        auth=guard,
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
        css=STYLE,
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


def build(gradio: Any, stations: Stations, folder: Path) -> Any:
    """The page: a picture, a slider through the steps, classes to tick, old and new side by side, and the run."""
    last = len(stations) - 1
    everything = list(dict.fromkeys(name for names in stations.classes for name in names[1:]))

    def update(path: str | None, step: float, shown: list[str], beside: bool) -> tuple[str, str]:
        number = min(last, max(0, int(step)))
        if path is None:
            return EMPTY, ""
        try:
            image = read_upload(path)
        except TissError as error:
            raise gradio.Error(str(error), print_exception=False) from None
        key = picture_key(image)
        pixels = image.permute(1, 2, 0).numpy()

        def at(place: int) -> str:
            mask = stations.mask(place, image, key)
            return view(stations.title(place), pixels, mask, stations.classes[place], shown)

        return at(number), at(number - 1) if beside and number > 0 else ""

    with gradio.Blocks(title="tiss", analytics_enabled=False, delete_cache=(600, 600)) as page:
        gradio.Markdown(f"# {folder.resolve().name}\n{len(stations)} step(s), {len(everything)} classes")
        with gradio.Tab("Segment"), gradio.Row():
            with gradio.Column(scale=1):
                picture = gradio.Image(
                    type="filepath",
                    image_mode=None,
                    sources=["upload", "clipboard"],
                    label="picture",
                    elem_id="picture",
                )
                step = gradio.Slider(
                    0, max(last, 1), value=last, step=1, label="step", visible=last > 0, elem_id="step"
                )
                beside = gradio.Checkbox(
                    False, label="old and new side by side", visible=last > 0, elem_id="beside"
                )
                shown = gradio.CheckboxGroup(everything, value=everything, label="classes", elem_id="classes")
            with gradio.Column(scale=2), gradio.Row():
                before = gradio.HTML("", elem_id="before")
                now = gradio.HTML(EMPTY, elem_id="now")
        with gradio.Tab("Run"):
            gradio.HTML(run_html(folder) or history_html(stations.records[-1]), elem_id="run")
        for component in (picture, step, shown, beside):
            component.change(update, [picture, step, shown, beside], [now, before], show_progress="minimal")
    return page


def read_upload(path: str) -> Tensor:
    """An uploaded picture uint8 3 × H × W, brought to the page's size; what is wrong with it names no file."""
    try:
        if os.path.getsize(path) > MOST_BYTES:
            raise TissError(f"{path}: more than {MOST_BYTES >> 20} MB")
        width, height = picture_size(path)
        if width * height > MOST_PIXELS:
            raise TissError(
                f"{path}: {width} × {height} pixels are more than {MOST_PIXELS / 1e6:.0f} million"
            )
        return shrink(read_image(path), LONGEST)
    except TissError as error:
        raise TissError(str(error).replace(path, "the picture")) from None


def import_gradio() -> Any:
    """gradio, or an error that says how to get it."""
    try:
        import gradio
    except ImportError as error:
        raise TissError(f"the page needs gradio: pip install 'tiss[app]' ({error})") from error
    return gradio
