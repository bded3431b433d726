"""A client of NVFlare's simulator that sends back what came; `nvflare_rounds.py` starts it.

    nvflare_echo.py FILE

The first client writes when each round's model came, in seconds of one clock, a line each.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nvflare.client as flare

flare.init()
first = flare.get_site_name() == "site-1"
with Path(sys.argv[1]).open("a", encoding="utf-8") as seen:
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        if first:
            seen.write(f"{time.monotonic()}\n")  # its runner makes log lines of what is printed
            seen.flush()
        flare.send(flare.FLModel(params=model.params, metrics={}, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
