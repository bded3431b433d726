"""What stands between a worker and its server: a TLS end, an HTTP proxy, a line that breaks. Real sockets, real HTTP.

In a thread of a test, or as a process in a network namespace of its own, which is told what to do on its standard
input: `python middle.py '{"listen": "10.0.0.1:3128", "kind": "proxy", "credentials": "me:secret"}'`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

PIECE_BYTES = 16 << 10


@dataclass
class Middle:
    """One listener.

    Args:
        listen: `host:port` (0: any), or the path of a Unix socket.
        target: `host:port`, or the path of a Unix socket, that everything is passed on to; of a `proxy` unused.
        kind: `line` passes bytes on; `proxy` is an HTTP proxy: CONNECT, and plain requests by absolute address.
        certificate: Path of a PEM file with key and chain, if it is the end of TLS.
        credentials: `name:password` that a proxy asks for.
        refuses: The status with which a proxy refuses everything.
        delay_s: How long each piece is held back.
    """

    listen: str = "127.0.0.1:0"
    target: str = ""
    kind: str = "line"
    certificate: str | None = None
    credentials: str | None = None
    refuses: str | None = None
    delay_s: float = 0.0
    port: int = 0
    connections: int = 0
    tunnels: list[str] = field(default_factory=list)
    bytes_up: int = 0

    def __post_init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()

    async def open(self) -> asyncio.Server:
        """Begin to listen."""
        self._flows.set()
        context = None
        if self.certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.certificate)
        if "/" in self.listen:
            return await asyncio.start_unix_server(self._serve, self.listen)
        host, _, port = self.listen.rpartition(":")
        server = await asyncio.start_server(self._serve, host, int(port), ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def cut(self) -> None:
        """Break every connection, at once and without a word."""
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Pass nothing on any more, in either direction, and close nothing: a line that is half open."""
        self._flows.clear()

    def strand(self) -> None:
        """Leave every connection half open for good; new ones pass."""
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    def go(self) -> None:
        """Pass everything on again."""
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            await (
                self._proxy(reader, writer) if self.kind == "proxy" else self._line(reader, writer, self.target, b"")
            )
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            with contextlib.suppress(OSError):
                writer.close()

    async def _proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        status = self.refuses or self._unless_known(head)
        if status is not None:
            extra = 'Proxy-Authenticate: Basic realm="test"\r\n' if status.startswith("407") else ""
            writer.write(f"HTTP/1.1 {status}\r\n{extra}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
            return
        self.tunnels.append(target)
        if method == "CONNECT":
            await self._line(reader, writer, target, b"", greeting=b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            host = target.split("/")[2]
            await self._line(reader, writer, host if ":" in host else f"{host}:80", head)

    def _unless_known(self, head: bytes) -> str | None:
        if self.credentials is None:
            return None
        wanted = b"proxy-authorization: basic " + base64.b64encode(self.credentials.encode())
        found = wanted.lower() in (line.strip().lower() for line in head.split(b"\r\n"))
        return None if found else "407 Proxy Authentication Required"

    async def _line(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        target: str,
        first: bytes,
        *,
        greeting: bytes = b"",
    ) -> None:
        host, _, port = target.rpartition(":")
        if "/" in target:
            far_reader, far_writer = await asyncio.open_unix_connection(target)
        else:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._writers.add(far_writer)
        try:
            writer.write(greeting)
            far_writer.write(first)
            ways = [asyncio.create_task(self._pump(reader, far_writer, up=True))]
            ways.append(asyncio.create_task(self._pump(far_reader, writer, up=False)))
            _, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in rest:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._writers.discard(far_writer)
            far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        flows = self._flows
        while piece := await reader.read(PIECE_BYTES):
            await flows.wait()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            self.bytes_up += len(piece) if up else 0
            writer.write(piece)
            await writer.drain()


@contextmanager
def middle(**options: Any) -> Iterator[Middle]:
    """Run one in a thread; what it is told is told through its loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def make() -> tuple[Middle, asyncio.Server]:
        made = Middle(**options)
        return made, await made.open()

    made, server = asyncio.run_coroutine_threadsafe(make(), loop).result(30)
    try:
        yield made
    finally:

        async def end() -> None:
            server.close()
            made.cut()
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            await asyncio.sleep(0)  # transports close themselves in the round after

        asyncio.run_coroutine_threadsafe(end(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _main() -> None:
    made = [Middle(**options) for options in json.loads(sys.argv[1])]
    servers = [await each.open() for each in made]
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while order := (await reader.readline()).decode().strip():
        for each in made:
            if order == "stats":
                continue
            getattr(each, order)()
        print(json.dumps([[each.connections, each.bytes_up, each.tunnels[-3:]] for each in made]), flush=True)
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(_main())
