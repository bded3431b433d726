"""A job's log, kept for what a person wants to read."""

from __future__ import annotations

import sys
import warnings
from typing import Final

import transformers

# What a library will change one day is news for its users' maintainers, not for the reader of a job's log.
_NEWS: Final = r"(transformers|trl|peft|accelerate|torch|lm_eval)\b"


def libraries() -> None:
    """Let the training libraries draw no progress bars, and say warnings only, but none of what they will change."""
    # Not every job reads datasets, and the import takes a second.
    if "datasets" in sys.modules:
        sys.modules["datasets"].disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_warning()
    warnings.filterwarnings("ignore", category=FutureWarning, module=_NEWS)
