"""How fast files go up and down through the server, beside nginx and an S3 server; what a cut or a version costs.

    python bench/transfer.py --json FILE            # about four minutes
    python bench/transfer.py --json FILE --quick    # about one minute

A fresh random file goes up and comes down again, in turns: ours checks the SHA-256 of what it gets and syncs the file
to the disk; nginx (`dav_methods PUT`) does neither; Ceph's gateway, spoken to by boto3, keeps it in memory. While ours
takes another file, its health is asked for every 5 ms: the longest answer is the longest stall of its event loop.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _common import BROKEN_STATUS, answers_s, free_port, verdict
from _limit import end_after
from _report import BUDGETS, Figure, Peer, Ratio, Report, decided, version_here

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.integration.s3.gateway import BUCKET, Gateway, missing_programs  # noqa: E402
from tunefleet.cli.local_cluster.supervisor import LocalFleet  # noqa: E402
from tunefleet.client import Client  # noqa: E402

MIB = 1 << 20
UP_BUDGET, DOWN_BUDGET = 500e6 / MIB, 600e6 / MIB
STALL_BUDGET_MS = 20.0
LIMIT_S = 900
NGINX = ROOT / ".nginx/usr/sbin/nginx"
CONFIG = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 0;
        root {folder}/root;
        sendfile on;
        dav_methods PUT DELETE;
    }}
}}
"""


@contextmanager
def nginx(folder: Path) -> Iterator[tuple[int, str]]:
    """Run an nginx that takes files; yields its port and version."""
    program = str(NGINX) if NGINX.exists() else shutil.which("nginx")
    if program is None:
        raise SystemExit("There is no nginx; run scripts/nginx.sh.")
    port = free_port()
    (folder / "root").mkdir(parents=True)
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, port=port))
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stderr
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while not listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((folder / "error.log").read_text())
            time.sleep(0.02)
        yield port, said.strip().rpartition("/")[2]
    finally:
        process.terminate()
        process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def put(port: int, path: str, file: Path, headers: dict[str, str]) -> float:
    """Upload a file; returns seconds."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, blocksize=MIB)
    with file.open("rb") as body:
        length = {"Content-Length": str(file.stat().st_size)}
        connection.request("PUT", path, body=body, headers={**length, **headers})
        reply = connection.getresponse()
        said = reply.read()
    connection.close()
    if reply.status not in (201, 204):
        raise SystemExit(f"PUT {path}: {reply.status} {said[:500]!r}")
    return time.perf_counter() - began


def get(port: int, path: str, headers: dict[str, str], size: int) -> float:
    """Download a file and throw it away; returns seconds."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    buffer, read = memoryview(bytearray(MIB)), 0
    while got := reply.readinto(buffer):
        read += got
    connection.close()
    if reply.status != 200 or read != size:
        raise SystemExit(f"GET {path}: {reply.status}, {read} of {size} bytes")
    return time.perf_counter() - began


class Ours:
    """A real server."""

    def __init__(self, fleet: LocalFleet, client: Client) -> None:
        self.fleet, self.client = fleet, client
        self.headers = {"Authorization": f"Bearer {fleet.key}"}

    def up(self, file: Path, digest: str) -> float:
        size = str(file.stat().st_size)
        return put(self.fleet.port, f"/api/v1/blobs/{digest}", file, self.place("0", size))

    def down(self, digest: str, size: int) -> float:
        return get(self.fleet.port, f"/api/v1/blobs/{digest}", self.headers, size)

    def place(self, offset: str, size: str) -> dict[str, str]:
        return {**self.headers, "Upload-Offset": offset, "Upload-Length": size}

    def peak_mib(self) -> float:
        """Return the largest resident memory that the server has had."""
        status = Path(f"/proc/{self.fleet.pid('server')}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def cut(self, file: Path, digest: str) -> int:
        """Break an upload in the middle, then push the file; returns how many bytes were sent for the second time."""
        size = file.stat().st_size
        with socket.create_connection(("127.0.0.1", self.fleet.port)) as line, file.open("rb") as body:
            fields = {**self.place("0", str(size)), "Host": "127.0.0.1", "Content-Length": str(size)}
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            line.sendall(f"PUT /api/v1/blobs/{digest} HTTP/1.1\r\n{head}\r\n".encode())
            line.sendfile(body, 0, size // 2)
        time.sleep(1.0)
        places: list[int] = []
        self.client.artifacts.push(
            file,
            name="cut",
            on_progress=lambda each: places.append(each.done_bytes) if each.phase == "uploading" else None,
        )
        # An upload that goes on reports the place first; one that begins anew reports its first piece.
        went_on = next((place for place in places if place), 0)
        return size // 2 - (went_on if went_on > MIB else 0)


def used_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def stored_share(ours: Ours, root: Path, weights_mib: int) -> float:
    """Push ten versions of an adapter; returns the bytes that were pushed ÷ the bytes that are kept."""
    before, pushed = used_bytes(ours.fleet.data), 0
    tokenizer = os.urandom(weights_mib * MIB)
    for version in range(10):
        folder = root / f"adapter-{version}"
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(tokenizer)
        (folder / "adapter_config.json").write_text('{"r": 16}')
        (folder / "adapter_model.safetensors").write_bytes(os.urandom(weights_mib * MIB))
        pushed += used_bytes(folder)
        ours.client.artifacts.push(folder, name="adapter", kind="adapter")
        shutil.rmtree(folder)
    return pushed / (used_bytes(ours.fleet.data) - before)


def fresh(file: Path, number: int) -> str:
    """Change a file a little, so that nobody has it yet; returns its digest."""
    with file.open("r+b") as content:
        content.write(number.to_bytes(16, "big"))
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="Where the report goes.")
    parser.add_argument("--quick", action="store_true", help="Three rounds of 32 MiB instead of eleven of 256.")
    options = parser.parse_args()
    end_after(LIMIT_S)
    rounds, mib = (3, 32) if options.quick else (11, 256)
    lacking = missing_programs()
    if lacking:
        raise SystemExit(f"There is no {', '.join(lacking)}; run scripts/gateway.sh.")
    found: dict[str, list[float]] = {}
    stalls: list[float] = []
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transfer-", ignore_cleanup_errors=True)))
        file = root / "file.bin"
        file.write_bytes(os.urandom(mib * MIB))
        port, version = stack.enter_context(nginx(root / "nginx"))
        gateway = Gateway(free_port(), free_port())
        stack.callback(gateway.stop)
        gateway.start()
        bucket = gateway.client
        fleet = stack.enter_context(LocalFleet(root / "data", port=free_port(), workers=0, save_client=False))
        ours = Ours(fleet, stack.enter_context(Client(fleet.url, fleet.key)))

        def note(who: str, way: str, seconds: float) -> None:
            found.setdefault(f"{who} {way}", []).append(mib / seconds)

        def beside_ours(work: Callable[[], None]) -> None:
            stalls.append(max(answers_s(fleet.url, work)) * 1e3)

        def our_turn(digest: str) -> None:
            note("ours", "up", ours.up(file, digest))
            ours.client.artifacts.push(file, name="file")
            note("ours", "down", ours.down(digest, mib * MIB))

        def nginx_turn(digest: str) -> None:
            note("nginx", "up", put(port, f"/{digest}", file, {}))
            note("nginx", "down", get(port, f"/{digest}", {}, mib * MIB))
            (root / "nginx/root" / digest).unlink()

        def s3_turn(digest: str) -> None:
            began = time.perf_counter()
            with file.open("rb") as body:
                bucket.put_object(Bucket=BUCKET, Key=digest, Body=body)
            note("s3", "up", time.perf_counter() - began)
            began = time.perf_counter()
            for _ in bucket.get_object(Bucket=BUCKET, Key=digest)["Body"].iter_chunks(MIB):
                pass
            note("s3", "down", time.perf_counter() - began)
            bucket.delete_object(Bucket=BUCKET, Key=digest)
            # It keeps what was deleted for two hours, and its store in memory has room for four such files.
            gateway.admin("gc", "process", "--include-all")

        ours.up(file, fresh(file, 0))
        before_mib = ours.peak_mib()
        turns = [our_turn, nginx_turn, s3_turn]
        for number in range(1, rounds + 1):
            digest = fresh(file, number)
            for turn in turns if number % 2 else reversed(turns):
                turn(digest)
            again = fresh(file, rounds + number)
            beside_ours(lambda again=again: (ours.up(file, again), None)[1])  # type: ignore[misc]
        grown_mib = ours.peak_mib() - before_mib
        again_bytes = ours.cut(file, fresh(file, 3 * rounds))
        share = stored_share(ours, root, 2 if options.quick else 16)
        ceph = subprocess.run(["radosgw", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    report = Report("transfer", quick=options.quick)
    tell(report, found, {"nginx": version, "s3": f"{ceph}, boto3 {version_here('boto3')}"}, mib)
    tell_rest(report, stalls, grown_mib, again_bytes, share, mib)
    report.write(options.json)
    return BROKEN_STATUS if any(row.verdict == "BROKEN" for row in report.rows) else 0


def tell(report: Report, found: dict[str, list[float]], versions: dict[str, str], mib: int) -> None:
    """Print and report the speeds."""
    names = {"nginx": "nginx PUT / GET", "s3": "Ceph gateway through boto3"}
    for way, budget in (("up", UP_BUDGET), ("down", DOWN_BUDGET)):
        mine = Figure.of(found[f"ours {way}"], "MiB/s")
        kept = decided(verdict(-mine.high, -mine.low, -budget))
        for who, name in names.items():
            theirs = found[f"{who} {way}"]
            ratio = Ratio.of([a / b for a, b in zip(found[f"ours {way}"], theirs, strict=True)])
            peer = Peer.of(name, versions[who], theirs, "MiB/s")
            print(
                f"{way:5} ours {mine.median:6.0f} MiB/s  {name:28} {peer.median:6.0f}  ratio {ratio.median:.2f}  {kept}"
            )
            report.row(
                f"{'upload with SHA-256' if way == 'up' else 'download'}, {mib} MiB", mine, peer, ratio=ratio,
                budget=BUDGETS["transfer"], verdict=kept, samples=len(theirs),
                note="ours checks the digest and syncs to the disk; nginx does neither; the gateway keeps it in memory",
            )  # fmt: skip


def tell_rest(report: Report, stalls: list[float], grown_mib: float, again: int, share: float, mib: int) -> None:
    """Print and report stalls, memory, the cut and the versions."""
    stall = Figure.of(stalls, "ms")
    kept = decided(verdict(stall.low, stall.high, STALL_BUDGET_MS))
    print(f"longest answer of the health during an upload: {stall.median:.1f} ms, at most {max(stalls):.1f}: {kept}")
    print(f"server grew by {grown_mib:.1f} MiB; sent again after a cut at 50 %: {again / MIB:.1f} of {mib} MiB")
    print(f"ten versions of an adapter: pushed ÷ kept {share:.2f}")
    report.row(
        "longest answer of /healthz during an upload", stall, budget=BUDGETS["transfer"], verdict=kept,
        samples=len(stalls), note=f"the longest of all: {max(stalls):.1f} ms; the client shares the machine's cores",
    )  # fmt: skip
    report.row("growth of the server's peak memory over all transfers", Figure.exactly(grown_mib, "MiB"))
    report.row(
        "sent again after a cut at 50 %", Figure.exactly(again / MIB, "MiB"),
        Peer("nginx PUT; boto3's upload_file", "as above", mib / 2, mib / 2, mib / 2, "MiB"),
        note="by their protocol, not measured: neither resumes automatically, so the half that had arrived is sent "
        "again",
    )  # fmt: skip
    report.row(
        "ten versions of an adapter: bytes pushed ÷ kept", Figure.exactly(share, "×"),
        Peer("nginx, S3", "as above", 1.0, 1.0, 1.0, "×"),
        note="weights wholly new in each version, a tokenizer as large as they are the same; files are kept once each",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
