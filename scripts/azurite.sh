#!/usr/bin/env bash
# See to it that there is Azurite, Azure's own emulator, for the tests. Called by make; one line if it does anything.
set -euo pipefail

version=3.35.0
folder="$(cd "$(dirname "$0")/.." && pwd)/.azurite"
if [ -n "${TUNEFLEET_AZURITE:-}" ]; then folder=$TUNEFLEET_AZURITE; fi
if [ -f "$folder/node_modules/azurite/dist/src/blob/main.js" ]; then exit 0; fi
command -v npm >/dev/null || { echo "-> no Azurite: install Node and npm" >&2; exit 1; }
echo "-> installing azurite $version"
npm install --silent --no-audit --no-fund --prefix "$folder" "azurite@$version"
