#!/bin/sh
# Print the users of a fleet's Redis, for its `aclfile`. Passwords are read from variables and printed as digests.
#
#   REDIS_SERVER_PASSWORD=… REDIS_WORKER_PASSWORD=… ./users.sh > users.acl    the server, and one user for all workers
#   REDIS_WORKER_PASSWORD=… ./users.sh lab-3 >> users.acl                     only for TUNEFLEET_WORKER_ID=lab-3
#
# TUNEFLEET_TASK_TOPIC and TUNEFLEET_REDIS_PREFIX: as for server and workers. REDIS_BEFORE_7=1 for Redis before 7,
# which cannot grant write without read permission.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

digest() {
    if [ "${#2}" -lt 16 ]; then
        echo "$1 must have 16 characters or more, such as \`openssl rand -hex 24\` prints." >&2
        exit 1
    fi
    printf '%s' "$2" | sha256sum | cut -d ' ' -f 1
}

plain() {
    case $2 in *[!A-Za-z0-9._:-]*)
        echo "$1=$2 may have letters, digits, '.', '_', ':' and '-' only." >&2
        exit 1
        ;;
    esac
}

topic=${TUNEFLEET_TASK_TOPIC:-${TASK_TOPIC:-tasks}} prefix=${TUNEFLEET_REDIS_PREFIX:-} only=${1:-}
plain TUNEFLEET_TASK_TOPIC "$topic"
plain TUNEFLEET_REDIS_PREFIX "$prefix"
plain TUNEFLEET_WORKER_ID "$only"
worker=$(digest REDIS_WORKER_PASSWORD "${REDIS_WORKER_PASSWORD:-}")
rights=$(sed -e "s/~tasks\([.:]\)/~$topic\1/g" -e "s/~/~$prefix/g" -e "s/#WORKER_SHA256/#$worker/" "$here/users.acl")
if [ -n "${REDIS_BEFORE_7:-}" ]; then rights=$(printf '%s\n' "$rights" | sed 's/%W~/~/g'); fi

if [ -n "$only" ]; then
    own="~$prefix$topic:$only ~${prefix}worker:$only ~${prefix}worker:$only:*"
    printf '%s\n' "$rights" | sed -n -e "s/^user worker /user worker-$only /" -e "s/ ~$prefix$topic:\* .*/ $own/" \
        -e "/^user worker-/p"
else
    server=$(digest REDIS_SERVER_PASSWORD "${REDIS_SERVER_PASSWORD:-}")
    printf '%s\n' "$rights" | sed "s/#SERVER_SHA256/#$server/"
fi
