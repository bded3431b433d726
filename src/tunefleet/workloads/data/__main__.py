"""`python -m tunefleet.workloads.data FILE`: the training preview without torch, which a tokenizer does not need.

transformers imports torch together with each tokenizer if it is installed: half of the time of a preview.
"""

from __future__ import annotations

import sys

# Before the first import of transformers, which then takes torch as not installed.
sys.modules["torch"] = None  # type: ignore[assignment]

from tunefleet.workloads.data.preview import main  # noqa: E402

sys.exit(main())
