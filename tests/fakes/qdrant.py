"""A stand-in for a Qdrant server: speaks its REST over real HTTP, and answers with the embedded mode of its client.

What is not needed here answers 404; `answers` are statuses that it gives first, one to each request.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class QdrantDouble:
    """The server.

    Args:
        key: The API key that it asks for; none lets everybody in.
    """

    def __init__(self, key: str | None = None) -> None:
        from qdrant_client import QdrantClient

        self.key = key
        self.client = QdrantClient(":memory:", force_disable_check_same_thread=True)
        self.seen: list[str] = []
        self.answers: list[int] = []
        self.on_request: Callable[[str], None] = lambda what: None
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        from qdrant_client import models

        if path == "/collections":
            return self.client.get_collections().model_dump(mode="json")
        found = re.fullmatch(r"/collections/([^/]+)(/.*)?", path)
        if found is None:
            return None
        name, what = found[1], f"{method} {found[2] or ''}"
        if what == "GET /exists":
            return {"exists": self.client.collection_exists(name)}
        if what == "PUT ":
            made = models.CreateCollection.model_validate(body)
            return self.client.create_collection(name, vectors_config=made.vectors, metadata=made.metadata)
        if not self.client.collection_exists(name):
            return None
        return self._of(name, what, body)

    def _of(self, name: str, what: str, body: dict[str, Any]) -> Any:
        from qdrant_client import models

        if what == "GET ":
            return self.client.get_collection(name).model_dump(mode="json")
        if what == "DELETE ":
            return self.client.delete_collection(name)
        if what == "PUT /points":
            points = [models.PointStruct.model_validate(each) for each in body["points"]]
            return self.client.upsert(name, points).model_dump(mode="json")
        if what == "POST /points/delete":
            selector = models.FilterSelector.model_validate(body)
            return self.client.delete(name, selector).model_dump(mode="json")
        if what == "POST /points/count":
            return self.client.count(name).model_dump(mode="json")
        if what == "POST /points/query/batch":
            asked = [models.QueryRequest.model_validate(each) for each in body["searches"]]
            return [each.model_dump(mode="json") for each in self.client.query_batch_points(name, asked)]
        return None


def _handler(double: QdrantDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            path = self.path.partition("?")[0]
            what = f"{self.command} {path}"
            double.on_request(what)
            with double.lock:
                double.seen.append(what)
                if double.key is not None and self.headers.get("api-key") != double.key:
                    self._say(401, {"status": {"error": "Must provide an API key"}})
                    return
                if double.answers:
                    self._say(double.answers.pop(0), {"status": {"error": "not now"}})
                    return
                found = double.answer(self.command, path, body)
            if found is None:
                self._say(404, {"status": {"error": "Not found"}})
                return
            self._say(200, {"result": found, "status": "ok", "time": 0.0})

        def _say(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = _serve

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
