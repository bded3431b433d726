"""`python -m tunefleet.worker`: settings, logging, and one worker until a signal ends it."""

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
        0 after a clean stop, 1 if it cannot work; the reason is on standard error in one sentence.
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
        raise MachineError(f"LOG_LEVEL={level!r} is no level.", hint="Use DEBUG, INFO, WARNING or ERROR.")
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # One line for each request or lock would bury what the worker itself says.
    for chatty in ("httpx", "httpcore", "filelock"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tunefleet.worker", description="Run tasks on this machine.")
    parser.add_argument("--server", help="URL of the server (default http://127.0.0.1:8000)")
    parser.add_argument("--key", help="key with the role worker; better given as TUNEFLEET_WORKER_KEY")
    parser.add_argument("--results-dir", type=Path, help="the worker's folder (default ./results_workers)")
    parser.add_argument("--id", help="the worker's name (default: made once and kept in its folder)")
    parser.add_argument("--tags", help="tags that a task may ask for, separated by commas")
    parser.add_argument("--allow-code", action="store_true", help="let code that a document names run here")
    parser.add_argument("--drain", action="store_true", help="take nothing new; end when all that is held is delivered")
    return parser


if __name__ == "__main__":
    sys.exit(main())
