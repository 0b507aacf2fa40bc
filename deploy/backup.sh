#!/bin/sh
# Write a consistent copy of everything that brokers keep in a database, while they run:
#
#   DATABASE_URL=postgres://... deploy/backup.sh queen.dump
#
# Pushes, pops and acks go on. The copy is of the moment at which it began: what is acknowledged later is delivered again after a
# restore. The file buffers of brokers are not in it, and neither are encryption keys: keep those elsewhere.
set -eu
: "${DATABASE_URL:?set DATABASE_URL}" "${1:?name the file to write}"
umask 077
exec "${PG_DUMP:-pg_dump}" --format=custom --no-owner --schema=queen --schema=queen_streams --file="$1" "$DATABASE_URL"
