"""A real PostgreSQL as a process of the test's own, with a new database for each test."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tunefleet.db import Database

USER = "tunefleet"
PASSWORD = "p@ss/word"
_SHOWN = "p%40ss%2Fword"
_ALWAYS = ("shared_buffers=64MB", "max_connections=200", "log_min_messages=warning")
_FAST = ("fsync=off", "full_page_writes=off")


def programs() -> Path | None:
    """Where `postgres` and `initdb` are: on PATH, or where Debian keeps them."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    return next((each for each in folders if (each / "postgres").exists() and (each / "initdb").exists()), None)


class PostgresProcess:
    """Started, stopped and started again on one port; its data lies in a folder of its own.

    Args:
        port: To listen on.
        durable: Whether a commit waits for the disk, as it does by default everywhere but in tests.
    """

    def __init__(self, port: int, *, durable: bool = False) -> None:
        self.port = port
        self._settings = _ALWAYS if durable else (*_ALWAYS, *_FAST)
        # Not pytest's folder: PostgreSQL refuses to run as root, and others may not look into that.
        self.folder = Path(tempfile.mkdtemp(prefix="tunefleet-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self._template = False

    def url(self, database: str = "postgres", *, user: str = USER, password: str = _SHOWN) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresProcess:
        data = self.folder / "data"
        if not data.exists():
            self._make(data)
        settings = [word for setting in self._settings for word in ("-c", setting)]
        where = ["-c", "listen_addresses=127.0.0.1", "-p", str(self.port), "-k", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user(), self._program("postgres"), "-D", str(data), *where, *settings],
                stdout=log, stderr=log, cwd="/",
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.connect():
                    return self
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "PostgreSQL does not respond"
                assert self._process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends every connection first, SIGQUIT is a crash."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(60)

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def connect(self, url: str | None = None) -> psycopg.Connection[Any]:
        """Connect as the superuser, each statement a transaction of its own."""
        return psycopg.connect(url or self.url(), autocommit=True)

    def create(self, template: str = "template0") -> str:
        """Make an empty database, or a copy of one, and return its URL."""
        name = f"test_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def copy(self) -> str:
        """Make a database that has our tables already."""
        if not self._template:
            with self.connect() as connection:
                connection.execute("CREATE DATABASE ours TEMPLATE template0")
            Database.open(self.url("ours")).close()
            self._template = True
        return self.create("ours")

    def drop(self, url: str) -> None:
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def end_connections(self, url: str) -> int:
        """End every connection to a database, as an administrator would; return how many there were."""
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
        with self.connect() as connection:
            row = connection.execute(query, (url.rpartition("/")[2],)).fetchone()
        assert row is not None
        return int(row[0])

    def _make(self, data: Path) -> None:
        self.folder.chmod(0o755)
        if os.geteuid() == 0:
            user = self._user()
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        auth = ["--auth-local=trust", "--auth-host=scram-sha-256", "-U", USER, f"--pwfile={secret}"]
        command = [self._program("initdb"), "-D", str(data), "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", *auth]
        subprocess.run([*self._as_user(), *command], check=True, capture_output=True, cwd="/")

    def _as_user(self) -> list[str]:
        if os.geteuid() != 0:
            return []
        user = self._user()
        return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]

    @staticmethod
    def _user() -> pwd.struct_passwd:
        names = {each.pw_name for each in pwd.getpwall()}
        return pwd.getpwnam("postgres" if "postgres" in names else "nobody")

    @staticmethod
    def _program(name: str) -> str:
        folder = programs()
        assert folder is not None
        return str(folder / name)
