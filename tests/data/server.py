"""A server on loopback that can behave badly: break off, send wrong bytes, ignore ranges."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files` by path; `break_after` holds how many bytes each coming request gets at most."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.break_after: list[int | None] = []
        self.ranges = True
        self.statuses: list[int] = []  # instead of an answer
        self.asked: list[str | None] = []  # the Range header of every request

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(self.headers.get("Range"))
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        data = server.files.get(self.path.lstrip("/"))
        if data is None:
            self.send_error(404)
            return
        start = 0
        wanted = self.headers.get("Range")
        if wanted and server.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        body = data[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        limit = server.break_after.pop(0) if server.break_after else None
        self.wfile.write(body if limit is None else body[:limit])
        if limit is not None:
            self.wfile.flush()
            self.connection.close()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def running() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
