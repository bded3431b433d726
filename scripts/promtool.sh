#!/usr/bin/env bash
# See to it that there is a promtool for the tests, which evaluate the shipped alerts. Called by make; one line if it
# does anything. Debian's package would start a service that listens: only that program is taken, into .promtool.
set -euo pipefail
cd "$(dirname "$0")/.."

place=.promtool
if command -v promtool >/dev/null || [ -x "$place/usr/bin/promtool" ]; then exit 0; fi
fail() { printf -- '-> no promtool: %s\n' "$*" >&2; exit 1; }

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "install promtool, a part of Prometheus, so that it is on PATH"
printf -- '-> fetching promtool\n'
draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT
chmod 755 "$draft"
fetch() { (cd "$draft" && apt-get -qq download prometheus >/dev/null 2>&1); }
fetch || { [ "$(id -u)" = 0 ] && apt-get -qq update >/dev/null && fetch; } || fail "apt-get could not fetch it"
dpkg-deb -x "$draft"/prometheus_*.deb "$draft/x"
"$draft/x/usr/bin/promtool" --version >/dev/null || fail "what was fetched does not run here"
rm -rf "$place"
mkdir -p "$place/usr/bin"
mv "$draft/x/usr/bin/promtool" "$place/usr/bin/"
