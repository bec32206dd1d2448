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

    def reply(self, value: Any, code: int = 200, **headers: str) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(code)
        for key, text in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        owner, name, what = (self.path.split("?")[0].split("/")[3:] + [""] * 3)[:3]
        address = f"{self.server.address}/{owner}/{name}"
        if self.headers.get("Authorization") != "Bearer hf_test":
            self.reply({"error": "Invalid credentials"}, 401)
        elif self.path.startswith("/api/repos/create"):
            made = json.loads(data)
            repository = f"{made['organization']}/{made['name']}"
            self.server.files.setdefault(repository, {})
            self.reply({"url": f"{self.server.address}/{repository}", "id": repository})
        elif what == "preupload":
            how = {"uploadMode": "regular", "shouldIgnore": False}
            self.reply({"files": [{"path": file["path"]} | how for file in json.loads(data)["files"]]})
        elif what == "commit":
            for entry in map(json.loads, data.decode().splitlines()):
                if entry["key"] == "file":
                    content = base64.b64decode(entry["value"]["content"])
                    self.server.files[f"{owner}/{name}"][entry["value"]["path"]] = content
            commit = {"commitUrl": f"{address}/commit/{REVISION}", "commitOid": REVISION}
            self.reply(commit | {"success": True, "hookOutput": ""})
        else:  # /api/validate-yaml
            self.reply({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        path = self.path.split("?")[0].strip("/").removeprefix("api/models/")
        owner, name, what, _, file = (path.split("/", 4) + [""] * 5)[:5]
        files = self.server.files.get(f"{owner}/{name}", {})
        if what == "resolve" and file in files:
            etag = f'"{hashlib.sha256(files[file]).hexdigest()}"'
            self.reply(files[file], ETag=etag, X_Repo_Commit=REVISION)
        elif what == "tree":
            hashes = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
            self.reply(
                [{"type": "file", "path": one, "size": len(files[one]), "oid": hashes[one]} for one in files]
            )
        elif files and what in ("", "revision"):
            about = {"id": f"{owner}/{name}", "sha": REVISION, "private": False, "tags": []}
            self.reply(about | {"siblings": [{"rfilename": file} for file in files]})
        else:
            self.reply({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET  # noqa: N815 - the standard library's name


@contextmanager
def serve() -> Iterator[Any]:
    """A running stand-in; `address` and `files` are its attributes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.files, server.address = {}, f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
