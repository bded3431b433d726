"""A real S3 server as processes of the test's own: Ceph's gateway, with a monitor and a store that lives in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import httpx

PROGRAMS = ("radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "monmaptool")
ACCESS_KEY, SECRET_KEY = "tests-access", "tests-secret-0123456789"
BUCKET = "artifacts"
_CONFIG = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon_port}]
auth cluster required = none
auth service required = none
auth client required = none
# Without it the gateway wants an encrypted connection, for which there are no keys.
ms mon client mode = crc
ms bind ipv6 = false
ms bind port min = 20000
ms bind port max = 30000
public addr = 127.0.0.1
public network = 127.0.0.0/8
keyring = /dev/null
admin socket =
pid file =
run dir = {folder}
crash dir = {folder}
log file = {folder}/$name.log
mon data = {folder}/mon
mon data avail crit = 1
mon allow pool size one = true
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 1073741824
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw thread pool size = 32
"""


def missing_programs() -> list[str]:
    """Name what is not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Gateway:
    """One bucket behind one key.

    Args:
        port: To listen on.
        mon_port: For its monitor.
    """

    def __init__(self, port: int, mon_port: int) -> None:
        self.port, self._mon_port = port, mon_port
        self.endpoint = f"http://127.0.0.1:{port}"
        self.folder = Path(tempfile.mkdtemp(prefix="tunefleet-s3-"))
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """What a server needs to keep its files here."""
        return {
            "TUNEFLEET_ARTIFACTS": f"s3://{BUCKET}/fleet",
            "TUNEFLEET_S3_ENDPOINT": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    @property
    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(request_checksum_calculation="when_required", s3={"addressing_style": "path"}),
        )

    def start(self) -> Gateway:
        try:
            return self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> Gateway:
        fsid, disk = str(uuid.uuid4()), str(uuid.uuid4())
        text = _CONFIG.format(fsid=fsid, mon_port=self._mon_port, port=self.port, folder=self.folder)
        (self.folder / "ceph.conf").write_text(text)
        for name in ("osd", "rgw"):
            (self.folder / name).mkdir()
        monmap = str(self.folder / "monmap")
        self._run("monmaptool", "--create", "--addv", "a", f"[v2:127.0.0.1:{self._mon_port}]", "--fsid", fsid, monmap)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        self._begin("ceph-mon", "-f", "-i", "a")
        self._run("ceph", "--connect-timeout", "60", "osd", "new", disk)
        # The same id in both places, or the disk is refused.
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
        self._begin("ceph-osd", "-f", "-i", "0")
        user = ("user", "create", "--uid", "tests", "--display-name", "tests")
        self._run("radosgw-admin", "-n", "client.admin", *user, "--access-key", ACCESS_KEY, "--secret", SECRET_KEY)
        self._begin("radosgw", "-f", "-n", "client.admin")
        self._until_it_answers()
        self.client.create_bucket(Bucket=BUCKET)
        return self

    def admin(self, *arguments: str) -> None:
        """Run a command of who manages the service: users, keys, quotas."""
        self._run("radosgw-admin", "-n", "client.admin", *arguments)

    def stop(self) -> None:
        """End what was started, the gateway first, and leave nothing."""
        for process in reversed(self._started):
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + 120
        while True:
            try:
                httpx.get(self.endpoint, trust_env=False)
            except httpx.TransportError:
                assert time.monotonic() < deadline, f"the gateway does not respond\n{self._said()}"
                assert all(each.poll() is None for each in self._started), f"a part has ended\n{self._said()}"
                time.sleep(0.1)
            else:
                return

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._command(program), *arguments], capture_output=True, env=self._quiet(), timeout=180, check=False
        )
        assert done.returncode == 0, f"{program}: {done.stderr.decode()}\n{self._said()}"

    def _begin(self, program: str, *arguments: str) -> None:
        with (self.folder / "said.log").open("ab") as log:
            command = [*self._command(program), *arguments]
            self._started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _command(self, program: str) -> list[str]:
        return [program] if program == "monmaptool" else [program, "-c", str(self.folder / "ceph.conf")]

    def _quiet(self) -> dict[str, str]:
        # A Python of the test environment must not run Ceph's own scripts.
        return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "VIRTUAL"))}

    def _said(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
