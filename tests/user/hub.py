"""A stand-in for the hub on loopback: just enough of its protocol to create, commit, list and fetch."""

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
            how = {"uploadMode": "regular", "shouldIgnore": False}
            self.reply({"files": [{"path": file["path"]} | how for file in json.loads(data)["files"]]})
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
        path = self.path.split("?")[0].strip("/")
        self.server.seen.append((self.command, path, self.headers.get("Authorization")))
        parts = path.removeprefix("api/models/").split("/")
        files = self.server.files.get("/".join(parts[:2]), {})
        if path.startswith("api/models/") and files and "tree" in parts:
            hashes = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
            tree = [
                {"type": "file", "path": name, "size": len(files[name]), "oid": hashes[name]}
                for name in files
            ]
            self.reply(tree)
        elif path.startswith("api/models/") and files:
            siblings = [{"rfilename": name} for name in files]
            about = {"id": "/".join(parts[:2]), "sha": REVISION, "private": False, "tags": []}
            self.reply(about | {"siblings": siblings})
        elif parts[2:3] == ["resolve"] and "/".join(parts[4:]) in files:
            data = files["/".join(parts[4:])]
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            self.reply(data, headers={"ETag": etag, "X-Repo-Commit": REVISION})
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
