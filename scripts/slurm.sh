#!/usr/bin/env bash
# See to it that there is a Slurm for the tests, which start one of their own on free ports. Called by make; one line if
# it does anything.
set -euo pipefail

export PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH"
missing=0
for name in slurmctld slurmd sbatch; do
    command -v "$name" >/dev/null || missing=1
done
[ "$missing" = 0 ] && exit 0
fail() { printf -- '-> no Slurm: %s\n' "$*" >&2; exit 1; }

packages=(slurmctld slurmd slurm-client)
command -v apt-get >/dev/null || fail "install Slurm 22.05 or newer so that slurmctld, slurmd and sbatch are on PATH"
sudo=()
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "run: sudo apt-get install --no-install-recommends ${packages[*]}"
    sudo=(sudo -n)
fi
printf -- '-> installing %s\n' "${packages[*]}"
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >/dev/null; }
apt install -y --no-install-recommends "${packages[@]}" 2>/dev/null && exit 0
apt update && apt install -y --no-install-recommends "${packages[@]}" || fail "apt-get could not install them"
