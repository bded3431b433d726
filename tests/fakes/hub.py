"""A double of the Hugging Face hub: the part of its HTTP API that publishing and gated models need, on loopback.

It answers as the Hub does, its error codes in `X-Error-Code` included; it keeps what it is given in memory.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.listening import listening

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_IS_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass
class Repo:
    """A repository: branch → path → content."""

    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {".gitattributes": b"*"}})
    gated: bool = False
    private: bool = False
    messages: list[str] = field(default_factory=list)


@dataclass
class Hub:
    """What the double holds.

    Args:
        token: The only one that may write.
        readers: Tokens whose accounts have accepted the licence of gated repositories.
    """

    token: str
    readers: set[str] = field(default_factory=set)
    repos: dict[str, Repo] = field(default_factory=dict)
    url: str = ""
    _objects: dict[str, bytes] = field(default_factory=dict)


class _Refused(Exception):
    def __init__(self, status: int, code: str, **said: str) -> None:
        super().__init__(code)
        self.status, self.code, self.said = status, code, said


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    _sha = _COMMIT
    """Of the revision that was asked for last."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(b"")

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self._body())

    def do_PUT(self) -> None:
        self._answer(self._body())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    @property
    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _answer(self, body: bytes) -> None:
        path = self.path.partition("?")[0]
        try:
            found = self._route(path, body)
        except _Refused as refused:
            told = {"X-Error-Code": refused.code, "X-Error-Message": refused.code}
            self._send(refused.status, json.dumps(refused.said).encode(), told)
            return
        if isinstance(found, bytes):
            digest = hashlib.sha256(found).hexdigest()
            self._send(200, found, {"ETag": f'"{digest}"', "X-Repo-Commit": self._sha})
        else:
            self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _route(self, path: str, body: bytes) -> Any:
        for pattern, act in (
            (r"/api/whoami-v2", self._whoami),
            (r"/api/repos/create", self._create),
            (r"/api/validate-yaml", self._validate),
            (r"/api/models/([^/]+/[^/]+)/branch/([^/]+)", self._branch),
            (r"/api/models/([^/]+/[^/]+)/auth-check(?:/\w+)?", self._auth_check),
            (r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)", self._preupload),
            (r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", self._commit),
            (r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/.*)?", self._tree),
            (r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", self._info),
            (r"/api/datasets/([^/]+/[^/]+).*", self._no_dataset),
            (r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", self._batch),
            (r"/objects/(\w+)", self._object),
            (r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self._resolve),
        ):
            match = re.fullmatch(pattern, path)
            if match is not None:
                return act(body, *match.groups())
        raise _Refused(404, "EntryNotFound")

    def _repo(self, name: str, revision: str | None = None) -> Repo:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self._token != self.hub.token):
            raise _Refused(404, "RepoNotFound")
        if revision not in {None, _COMMIT} and revision not in repo.branches:
            raise _Refused(404, "RevisionNotFound")
        # What has a commit's name is one: that of a state before the main branch's.
        self._sha = revision if revision is not None and _IS_COMMIT.fullmatch(revision) else _COMMIT
        return repo

    def _writer(self) -> None:
        if self._token != self.hub.token:
            raise _Refused(401, "")

    def _whoami(self, body: bytes) -> Any:
        self._writer()
        return {"type": "user", "name": "tester", "auth": {"accessToken": {"role": "write"}}}

    def _validate(self, body: bytes) -> Any:
        said = json.loads(body)
        assert said["repoType"] == "model"
        assert said["content"].startswith("---\n")
        return {"errors": [], "warnings": []}

    def _create(self, body: bytes) -> Any:
        self._writer()
        said = json.loads(body)
        name = "/".join(filter(None, (said.get("organization"), said["name"])))
        name = name if "/" in name else f"tester/{name}"
        private = bool(said.get("private")) or said.get("visibility") == "private"
        if name in self.hub.repos:
            raise _Refused(409, "", error="You already created this model repo", url=f"{self.hub.url}/{name}")
        self.hub.repos[name] = Repo(private=private)
        return {"url": f"{self.hub.url}/{name}", "id": name, "name": name}

    def _branch(self, body: bytes, name: str, branch: str) -> Any:
        self._writer()
        repo = self._repo(name)
        repo.branches.setdefault(branch, dict(repo.branches["main"]))
        return {}

    def _auth_check(self, body: bytes, name: str) -> Any:
        self._read(self._repo(name))
        return {}

    def _read(self, repo: Repo) -> None:
        if repo.gated and self._token not in self.hub.readers:
            raise _Refused(403 if self._token else 401, "GatedRepo")

    def _info(self, body: bytes, name: str, revision: str | None) -> Any:
        # Everybody may read what a gated repository is: only its files are refused.
        repo = self._repo(name, revision)
        files = repo.branches[revision if revision in repo.branches else "main"]
        siblings = [{"rfilename": path} for path in sorted(files)]
        gated = "manual" if repo.gated else False
        return {"_id": "1", "id": name, "modelId": name, "sha": self._sha, "private": repo.private, "gated": gated,
                "tags": [], "downloads": 0, "likes": 0, "siblings": siblings}  # fmt: skip

    def _no_dataset(self, body: bytes, name: str) -> Any:
        raise _Refused(404, "RepoNotFound")

    def _tree(self, body: bytes, name: str, revision: str) -> Any:
        files = self._repo(name, revision).branches[revision if revision != _COMMIT else "main"]
        return [{"type": "file", "path": path, "size": len(each), "oid": "0"} for path, each in sorted(files.items())]

    def _preupload(self, body: bytes, name: str, revision: str) -> Any:
        self._writer()
        self._repo(name, revision)
        return {
            "files": [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                 "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
        }  # fmt: skip

    def _batch(self, body: bytes, name: str) -> Any:
        self._writer()
        objects = [
            {"oid": each["oid"], "size": each["size"],
             "actions": {"upload": {"href": f"{self.hub.url}/objects/{each['oid']}"}}}
            for each in json.loads(body)["objects"]
        ]  # fmt: skip
        return {"transfer": "basic", "objects": objects}

    def _object(self, body: bytes, oid: str) -> Any:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Refused(400, "BadDigest")
        self.hub._objects[oid] = body
        return {}

    def _commit(self, body: bytes, name: str, revision: str) -> Any:
        self._writer()
        repo = self._repo(name, revision)
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                repo.messages.append(value["summary"])
            elif line["key"] == "file":
                repo.branches[revision][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repo.branches[revision][value["path"]] = self.hub._objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del repo.branches[revision][value["path"]]
        return {"commitUrl": f"{self.hub.url}/{name}/commit/{_COMMIT}", "commitOid": _COMMIT, "success": True}

    def _resolve(self, body: bytes, name: str, revision: str, path: str) -> Any:
        repo = self._repo(name, revision)
        self._read(repo)
        files = repo.branches[revision if revision in repo.branches else "main"]
        if path not in files:
            raise _Refused(404, "EntryNotFound")
        return files[path]


@contextmanager
def serving(token: str) -> Iterator[Hub]:
    """Serve while the body runs."""
    hub = Hub(token)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with listening(handler) as hub.url:
        yield hub
