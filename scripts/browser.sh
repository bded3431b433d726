#!/usr/bin/env bash
# See to it that there is a Chromium for the tests in a real browser. Called by make; one line if it does anything.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
fail() { printf -- '-> no browser: %s\n' "$*" >&2; exit 1; }

command -v apt-get >/dev/null || fail "install Chromium or Chrome so that it is on PATH"
sudo=()
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "run: sudo apt-get install --no-install-recommends chromium"
    sudo=(sudo -n)
fi
printf -- '-> installing chromium\n'
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >/dev/null; }
apt install -y --no-install-recommends chromium 2>/dev/null && exit 0
apt update && apt install -y --no-install-recommends chromium || fail "apt-get could not install chromium"
