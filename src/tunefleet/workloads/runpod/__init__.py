"""Merging on RunPod serverless: the program of the container of `Dockerfile.runpod`.

handler      a job: input → merge → output
merging      the merge, in its own process
repository   the result's repository on the Hub, and whether it exists already
"""
