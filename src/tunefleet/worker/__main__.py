"""`python -m tunefleet.worker`: load settings, configure logging, and run one worker until a signal stops it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from tunefleet.errors import MachineError, TunefleetError
from tunefleet.observability.logs import LogFormat, formatter
from tunefleet.settings import load_worker
from tunefleet.worker.main import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker.

    Returns:
        0 after a clean stop, 1 on an error; the message is on standard error.
    """
    options = _parser().parse_args(arguments)
    try:
        settings = load_worker(
            server_url=options.server,
            key=options.key,
            results_dir=options.results_dir,
            worker_id=options.id,
            tags=options.tags,
            allow_code=options.allow_code or None,
        )
        log_to_stderr(settings.log_level, settings.log_format)
        run(settings, drain=options.drain)
    except TunefleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def log_to_stderr(level: str, form: LogFormat = "text") -> None:
    """Send the log to standard error."""
    if level.upper() not in logging.getLevelNamesMapping():
        raise MachineError(
            f"TUNEFLEET_LOG_LEVEL={level!r} is not a log level.", hint="Use DEBUG, INFO, WARNING or ERROR."
        )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # One line for each request or lock would bury the worker's own messages.
    for noisy in ("httpx", "httpcore", "filelock"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tunefleet.worker", description="Run tasks on this machine.")
    parser.add_argument("--server", help="URL of the server (default http://127.0.0.1:8000)")
    parser.add_argument("--key", help="key with the role worker; prefer TUNEFLEET_WORKER_KEY")
    parser.add_argument("--results-dir", type=Path, help="the worker's folder (default ./results_workers)")
    parser.add_argument("--id", help="ID of the worker (default: generated once and kept in its folder)")
    parser.add_argument("--tags", help="comma-separated tags that tasks can require")
    parser.add_argument("--allow-code", action="store_true", help="allow custom code from workflow files to run")
    parser.add_argument("--drain", action="store_true", help="accept no new tasks; exit when everything is delivered")
    return parser


if __name__ == "__main__":
    sys.exit(main())
