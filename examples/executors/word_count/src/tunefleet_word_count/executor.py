"""The executor of the task type. Imports only light packages: the program imports the rest, in its own process."""

from __future__ import annotations

from typing import ClassVar

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet_word_count.spec import REPORT


class WordCountExecutor(JobExecutor):
    """Counts words; tasks of one owner that differ only in their texts run as one."""

    kind = "word_count"
    program = "tunefleet_word_count.program:main"
    merges: ClassVar[bool] = True
    supported_commands = BETWEEN_ITEMS

    def unavailable_reason(self) -> str | None:
        """Return why this machine cannot run the task type, with the fix; None: it can."""
        return None

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the report."""
        file = folder.root / REPORT
        return [Output(name=REPORT, kind="report", path=file)] if file.is_file() else []
