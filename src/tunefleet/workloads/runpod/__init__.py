"""Merging on RunPod serverless: what the container of `Dockerfile.runpod` runs.

handler      a job: input → merge → output
merging      the merge, as a process of its own
repository   where the result goes on the hub, and whether it is there already
"""
