#!/usr/bin/env bash
# Install the Tunefleet training agent for this user, on Linux (systemd) or macOS (launchd).
#
#   TUNEFLEET_BACKEND_URL=https://… TUNEFLEET_BACKEND_KEY=wak_… scripts/install.sh [--no-start]
#
# INSTALL_DIR  folder of the environment and the agent (default ~/.tunefleet/training-agent)
# PYTHON_BIN   Python interpreter, 3.11 or newer (default python3)
# PACKAGE      package for pip (default: the checkout of this script; or the server's wheel:
#              "$(curl -fsS $TUNEFLEET_BACKEND_URL/install)")
set -euo pipefail

install_dir=${INSTALL_DIR:-$HOME/.tunefleet/training-agent}
python=${PYTHON_BIN:-python3}
package=${PACKAGE:-$(cd "$(dirname "$0")/.." && pwd)[train]}

say() { printf -- '-> %s\n' "$*"; }
fail() { printf 'Installation stopped: %s\n' "$*" >&2; exit 1; }

case "$(uname -s)" in
    Linux | Darwin) ;;
    *) fail "this script is for Linux and macOS; on Windows run scripts/install.ps1" ;;
esac
command -v "$python" >/dev/null || fail "$python is not here; name one with PYTHON_BIN"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python is older than 3.11; name another with PYTHON_BIN"

mkdir -p "$install_dir"
if [ -n "${TUNEFLEET_VENV:-}" ]; then
    venv=$TUNEFLEET_VENV # one that is there already
else
    venv=$install_dir/venv
    say "creating $venv"
    "$python" -m venv "$venv"
    say "installing $package"
    "$venv/bin/python" -m pip install --quiet --upgrade "$package"
fi

settings=()
for name in TUNEFLEET_{BACKEND_URL,BACKEND_KEY,AGENT_ID,AGENT_KEY,AGENT_HOST,AGENT_PORT} \
    TUNEFLEET_{MODELS_DIR,DATASETS_DIR,CHECKPOINTS_DIR,LOGS_DIR,MAX_GPU_MEMORY_FRACTION,MIXED_PRECISION,MAX_JOBS} \
    BACKEND_URL API_KEY AGENT_ID AGENT_KEY HOST PORT MODELS_DIR DATASETS_DIR CHECKPOINTS_DIR LOGS_DIR \
    GPU_MEMORY_FRACTION ENABLE_MIXED_PRECISION MAX_CONCURRENT_JOBS; do
    if [ -n "${!name:-}" ]; then settings+=(--set "$name=${!name}"); fi
done
say "writing the service"
"$venv/bin/tunefleet" agent install --folder "$install_dir" ${settings[@]+"${settings[@]}"} "$@"
