"""Runs a GGUF file with llama.cpp, as `llama-server` does; it ends when its standard input is closed.

Run by file name in the environment `gguf`, whose package has the server but not that program.
"""

from __future__ import annotations

import argparse
import sys

import xllamacpp


def main() -> None:
    """Serve a file on a Unix socket."""
    parser = argparse.ArgumentParser()
    for name in ("model", "host"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("ctx-size", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    wanted = parser.parse_args()
    parameters = xllamacpp.CommonParams()
    parameters.model.path = wanted.model
    parameters.hostnames = [wanted.host]
    parameters.n_ctx = wanted.ctx_size
    parameters.cpuparams.n_threads = wanted.threads
    parameters.n_parallel = 1
    parameters.warmup = False
    parameters.fit_params = False
    server = xllamacpp.Server(parameters)
    print(f"Listening on {server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
