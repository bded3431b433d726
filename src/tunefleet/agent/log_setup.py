"""The agent's own log: standard error, the rotating file `agent.log`, and an optional remote sink."""

from __future__ import annotations

import logging
import logging.handlers
import socket
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tunefleet.errors import MachineError
from tunefleet.observability.logs import JsonLines, PrivateLogFile, TextLines
from tunefleet.settings import AgentSettings

MAX_BYTES: Final = 100 << 20
KEEP_DAYS: Final = 30
_BACKUPS: Final = 20
# One line per request or lock would bury the agent's own messages.
_CHATTY: Final = ("httpx", "httpcore", "filelock", "uvicorn")


def set_up(settings: AgentSettings) -> None:
    """Configure the log from the settings.

    Raises:
        MachineError: If the level is invalid, or a sink cannot be opened.
    """
    level = settings.log_level.upper()
    if level not in logging.getLevelNamesMapping():
        raise MachineError(
            f"TUNEFLEET_LOG_LEVEL={settings.log_level!r} is not a log level.", hint="Use DEBUG, INFO, WARNING or ERROR."
        )
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(_to_stderr(settings))
    root.addHandler(_to_file(settings.logs_dir.expanduser() / "agent.log"))
    if settings.log_sink:
        root.addHandler(remote(settings.log_sink))
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class Lines(TextLines):
    """The protocol's format: `YYYY-MM-DD HH:mm:ss | LEVEL | module:function - message`."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s | %(levelname)-8s | %(module)s:%(funcName)s - %(message)s", datefmt="%Y-%m-%d %H:%M:%S"
        )


class RotatingFile(PrivateLogFile):
    """Rotates at a size limit, and deletes files older than some days."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, keep_days: float = KEEP_DAYS) -> None:
        self._keep_s = keep_days * 24 * 3600
        super().__init__(path, maxBytes=max_bytes, backupCount=_BACKUPS, encoding="utf-8")
        self._delete_old()

    def doRollover(self) -> None:
        """Rotate, then delete old files."""
        super().doRollover()
        self._delete_old()

    def _delete_old(self) -> None:
        current = Path(self.baseFilename)
        for file in current.parent.glob(f"{current.name}.*"):
            if time.time() - file.stat().st_mtime > self._keep_s:
                file.unlink(missing_ok=True)


def remote(url: str) -> logging.Handler:
    """Return a handler that sends the log to a collector.

    Args:
        url: `syslog://HOST:514` by UDP, `syslog+tcp://HOST:514` by TCP.
    """
    parts = urlsplit(url)
    kinds = {"syslog": socket.SOCK_DGRAM, "syslog+tcp": socket.SOCK_STREAM}
    if parts.scheme not in kinds or not parts.hostname:
        raise MachineError(
            f"TUNEFLEET_LOG_SINK={url!r} is not valid.", hint="Use syslog://HOST:514 or syslog+tcp://HOST:514."
        )
    try:
        handler = logging.handlers.SysLogHandler((parts.hostname, parts.port or 514), socktype=kinds[parts.scheme])
    except OSError as error:
        raise MachineError(
            f"TUNEFLEET_LOG_SINK={url!r} does not respond: {error}.", hint="Start the log collector, or unset it."
        ) from None
    handler.ident = "tunefleet-agent: "
    # Many collectors show the trailing null byte, which RFC 5424 does not have.
    handler.append_nul = False
    handler.setFormatter(JsonLines())
    return handler


def _to_stderr(settings: AgentSettings) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else Lines())
    return handler


def _to_file(path: Path) -> logging.Handler:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = RotatingFile(path)
    except OSError as error:
        raise MachineError(
            f"TUNEFLEET_LOGS_DIR: cannot write {path}: {error.strerror}.",
            hint="Fix the folder's permissions, or set another TUNEFLEET_LOGS_DIR.",
        ) from None
    handler.setFormatter(JsonLines())
    return handler
