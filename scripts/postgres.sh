#!/usr/bin/env bash
# See to it that there is a real PostgreSQL for the tests. Called by make; one line if it does anything.
set -euo pipefail

shopt -s nullglob
found=(/usr/lib/postgresql/*/bin/initdb)
if command -v postgres >/dev/null || [ "${#found[@]}" != 0 ]; then exit 0; fi
fail() { printf -- '-> no PostgreSQL: %s\n' "$*" >&2; exit 1; }

command -v apt-get >/dev/null || fail "install PostgreSQL 14 or newer so that postgres and initdb are on PATH"
sudo=()
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "run: sudo apt-get install --no-install-recommends postgresql"
    sudo=(sudo -n)
fi
printf -- '-> installing postgresql\n'
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >/dev/null; }
apt install -y --no-install-recommends postgresql 2>/dev/null && exit 0
apt update && apt install -y --no-install-recommends postgresql || fail "apt-get could not install postgresql"
