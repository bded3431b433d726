#!/usr/bin/env bash
# See to it that there is a real S3 server for the tests: Ceph's gateway. Called by make; one line if it does anything.
set -euo pipefail

packages=(radosgw ceph-mon ceph-osd ceph-common)
lacking=0
for name in radosgw radosgw-admin ceph ceph-mon ceph-osd monmaptool; do
    command -v "$name" >/dev/null || lacking=1
done
if [ "$lacking" = 0 ]; then exit 0; fi
fail() { printf -- '-> no S3 server: %s\n' "$*" >&2; exit 1; }

command -v apt-get >/dev/null || fail "install Ceph's radosgw, ceph-mon, ceph-osd and ceph-common so that they are on PATH"
sudo=()
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "run: sudo apt-get install --no-install-recommends ${packages[*]}"
    sudo=(sudo -n)
fi
printf -- '-> installing %s\n' "${packages[*]}"
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >/dev/null; }
apt install -y --no-install-recommends "${packages[@]}" 2>/dev/null && exit 0
apt update && apt install -y --no-install-recommends "${packages[@]}" || fail "apt-get could not install ${packages[*]}"
