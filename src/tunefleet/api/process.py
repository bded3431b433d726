"""The server process: settings, logging, and one server until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import tunefleet
from tunefleet.api import launch
from tunefleet.api.app import create_app
from tunefleet.certificate import load_certificate
from tunefleet.client import trust
from tunefleet.errors import MachineError, TunefleetError
from tunefleet.observability.logs import PrivateLogFile, formatter
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.settings import CampaignSettings, ServerSettings, TrackingSettings, load, unsupported
from tunefleet.transport.redis.address import address_of

log = logging.getLogger("tunefleet.api")
_EXIT_FAILED: Final = 1
_PLAIN: Final = (
    "%s is plain HTTP and reachable from the network: keys and files are sent unencrypted. Set "
    "TUNEFLEET_TLS_CERT_FILE and "
    "TUNEFLEET_TLS_KEY_FILE, or put a TLS proxy in front of it and set TUNEFLEET_PUBLIC_URL=https://…"
)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20
_APART_BYTES: Final = 8 << 20
_GARBAGE: Final = 10_000
"""Garbage collection threshold: with 1,000 workers each request creates thousands of objects, hardly any of them in
cycles, and a collection scans everything that is held open."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a server.

    Returns:
        0 after a clean shutdown, 1 if it cannot start, with a one-line reason on standard error.
    """
    options = _parser().parse_args(arguments)
    try:
        settings = load(ServerSettings, data=options.data, host=options.host, port=options.port)
        trust.use(settings.ca_file)
        load(CampaignSettings)
        load(TrackingSettings)  # report invalid campaign settings now, not when the first campaign runs
        _set_up_log(settings)
        for sentence in unsupported("server"):
            log.warning(sentence)
        _serve(settings, adopt_files=options.adopt_files)
    except TunefleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return _EXIT_FAILED
    return 0


def _serve(settings: ServerSettings, *, adopt_files: bool) -> None:
    redis_address = address_of(settings)
    certificate = load_certificate(settings.tls_cert_file, settings.tls_key_file)
    if certificate is not None:
        certificate.tell()
    core = open_context(settings, adopt_files=adopt_files)
    try:
        # Before the port is bound: two servers with different databases on one Redis topic would take each other's
        # messages.
        if redis_address is not None:
            from tunefleet.api.redis_gateway import refuse_other_store  # noqa: PLC0415 -- most servers need no Redis

            asyncio.run(refuse_other_store(core, redis_address))
        bound = launch.bind(settings.host, settings.port)
        try:
            address, port = bound.getsockname()[:2]
            shown = f"[{address}]" if ":" in address else address
            scheme = "http" if certificate is None else "https"
            place = f"{scheme}://{shown}:{port}"
            log.info("Tunefleet %s at %s, data in %s", tunefleet.__version__, place, settings.data_dir)
            if certificate is None and launch.is_open(settings, address):
                log.warning(_PLAIN, place)
            server = launch.make(create_app(core), certificate)
            # Objects of the startup live until the end: exclude them from later collections. There is no collection
            # before it either: the few megabytes in cycles of the modules are not worth a quarter of a second.
            gc.freeze()
            gc.enable()
            gc.set_threshold(_GARBAGE, 20, 20)
            _retain_freed_memory()
            launch.run(server, bound, certificate)
        finally:
            bound.close()
    finally:
        core.close()
    log.info("Stopped.")


def _retain_freed_memory() -> None:
    """Make the C library retain freed memory, if it supports `mallopt`."""
    # Files are copied in megabyte buffers: returning a page to the system and faulting it in again costs about as much
    # as copying its bytes.
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        set_option(_M_MMAP_THRESHOLD, _APART_BYTES)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tunefleet.api", description="Run a Tunefleet server.")
    parser.add_argument("--data", type=Path, help="folder for the database and files (default: data in TUNEFLEET_HOME)")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on; 0 picks a free one (default 8000)")
    parser.add_argument(
        "--adopt-files",
        action="store_true",
        help="use once, to adopt the data folder for this database; unknown files are kept",
    )
    return parser


def _set_up_log(settings: ServerSettings) -> None:
    level = settings.log_level
    if level.upper() not in logging.getLevelNamesMapping():
        raise MachineError(
            f"TUNEFLEET_LOG_LEVEL={level!r} is not a log level.", hint="Use DEBUG, INFO, WARNING or ERROR."
        )
    root = logging.getLogger()
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if settings.log_file is not None:
        handlers.append(_file_handler(settings, settings.log_file.expanduser()))
    for handler in handlers:
        handler.setFormatter(formatter(settings.log_format))
        root.addHandler(handler)
    root.setLevel(level.upper())
    for library in ("uvicorn", "alembic", "boto3", "botocore", "urllib3", "httpx", "httpcore"):
        # At INFO they repeat our own messages or print signed URLs; their warnings and errors still appear.
        logging.getLogger(library).setLevel(max(logging.WARNING, root.level))


def _file_handler(settings: ServerSettings, path: Path) -> logging.Handler:
    try:
        return PrivateLogFile(
            path, maxBytes=settings.log_max_bytes, backupCount=settings.log_backup_count, encoding="utf-8"
        )
    except OSError as error:
        raise MachineError(
            f"Cannot write the log file {path}: {error.strerror or error}.",
            hint="Check TUNEFLEET_LOG_FILE and its folder.",
        ) from error
