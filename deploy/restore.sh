#!/bin/sh
# Bring a backup into an empty database, before any broker is started on it:
#
#   DATABASE_URL=postgres://... deploy/restore.sh queen.dump
#
# All of it or nothing. The tables belong to the role that restores; run deploy/low-privilege-role.sql again when brokers use another.
# Stop the brokers of the old database first: two databases that both deliver deliver everything twice.
set -eu
: "${DATABASE_URL:?set DATABASE_URL}" "${1:?name the file to read}"
exec "${PG_RESTORE:-pg_restore}" --no-owner --single-transaction --exit-on-error --dbname="$DATABASE_URL" "$1"
