"""A stand-in for the hub on loopback: just enough of its protocol to create, commit, list and fetch."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REVISION = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """One repository's files live in `server.files`, by repository and path."""

    server: Any

    def log_message(self, *_: object) -> None:
        """Keeps the tests' output clean."""

    def reply(self, value: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(code)
        for key, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def do_POST(self) -> None:
        path, data = self.path.split("?")[0], self.body()
        self.server.seen.append(("POST", path, self.headers.get("Authorization")))
        if self.headers.get("Authorization") != "Bearer hf_test":
            self.reply({"error": "Invalid credentials"}, 401)
        elif path == "/api/repos/create":
            made = json.loads(data)
            name = f"{made['organization']}/{made['name']}" if made.get("organization") else made["name"]
            self.server.files.setdefault(name, {})
            self.reply({"url": f"{self.server.address}/{name}", "id": name})
        elif "/preupload/" in path:
            files = json.loads(data)["files"]
            self.reply(
                {
                    "files": [
                        {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
                    ]
                }
            )
        elif "/commit/" in path:
            name = "/".join(path.split("/")[3:5])
            for line in data.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    content = base64.b64decode(entry["value"]["content"])
                    self.server.files[name][entry["value"]["path"]] = content
            commit = {"commitUrl": f"{self.server.address}/{name}/commit/{REVISION}", "commitOid": REVISION}
            self.reply(commit | {"success": True, "hookOutput": ""})
        elif path == "/api/validate-yaml":
            self.reply({"errors": [], "warnings": []})
        else:
            self.reply({"error": f"unknown {path}"}, 404)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.server.seen.append((self.command, path, self.headers.get("Authorization")))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and "/".join(parts[2:4]) in self.server.files:
            name = "/".join(parts[2:4])
            files = self.server.files[name]
            if "tree" in parts:
                tree = [
                    {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for path, data in files.items()
                ]
                self.reply(tree)
            else:
                siblings = [{"rfilename": path} for path in files]
                self.reply({"id": name, "sha": REVISION, "siblings": siblings, "private": False, "tags": []})
        elif (
            len(parts) >= 5
            and parts[2] == "resolve"
            and "/".join(parts[4:]) in self.server.files.get("/".join(parts[:2]), {})
        ):
            data = self.server.files["/".join(parts[:2])]["/".join(parts[4:])]
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": REVISION}
            self.reply(data, headers=headers)
        else:
            self.reply({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815 - the standard library's name


@contextmanager
def serve() -> Iterator[Any]:
    """A running stand-in; `address`, `files` and `seen` are its attributes."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.seen = {}, []
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
