#!/bin/sh
# Print the settings that compose.yaml asks for, with new passwords: sh deploy/new-env.sh > deploy/.env
set -eu
umask 077

password() { od -An -N 24 -tx1 /dev/urandom | tr -d ' \n'; }

cat <<END
# Made by deploy/new-env.sh; who has this file has the database and the Redis.
POSTGRES_PASSWORD=$(password)
REDIS_SERVER_PASSWORD=$(password)
REDIS_WORKER_PASSWORD=$(password)
# The address that people and other machines use, such as https://tunefleet.example.org:
TUNEFLEET_PUBLIC_URL=
# Proxies that say who asks, such as 172.16.0.0/12 for those in containers:
TUNEFLEET_TRUSTED_PROXIES=
END
