#!/usr/bin/env bash
# See to it that there is an nginx for the tests, which run what the guides say. Called by make; one line if it does
# anything. Debian's package would start a service that listens: only its program is taken, into .nginx.
set -euo pipefail
cd "$(dirname "$0")/.."

place=.nginx
export PATH="$PATH:/usr/sbin:/usr/local/sbin"
if command -v nginx >/dev/null || [ -x "$place/usr/sbin/nginx" ]; then exit 0; fi
fail() { printf -- '-> no nginx: %s\n' "$*" >&2; exit 1; }

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "install nginx so that it is on PATH"
printf -- '-> fetching nginx\n'
draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT
chmod 755 "$draft"
fetch() { (cd "$draft" && apt-get -qq download nginx >/dev/null 2>&1); }
fetch || { [ "$(id -u)" = 0 ] && apt-get -qq update >/dev/null && fetch; } || fail "apt-get could not fetch it"
dpkg-deb -x "$draft"/nginx_*.deb "$draft/x"
"$draft/x/usr/sbin/nginx" -v 2>/dev/null || fail "what was fetched does not run here"
rm -rf "$place"
mv "$draft/x" "$place"
