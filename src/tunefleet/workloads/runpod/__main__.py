"""`python -m tunefleet.workloads.runpod`: process the jobs of an endpoint; with `--rp_serve_api`, local ones."""

from __future__ import annotations

from importlib import import_module

from tunefleet.workloads.runpod.handler import handler

if __name__ == "__main__":
    # RunPod's library is installed in its container only.
    import_module("runpod").serverless.start({"handler": handler})
