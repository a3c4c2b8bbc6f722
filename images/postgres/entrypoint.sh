# First start: a cluster with one superuser, POSTGRES_USER (default postgres) with POSTGRES_PASSWORD, and the database
# POSTGRES_DB (default: the user's name). Then, and at each later start: the server, with the arguments given.
set -eu
user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  if [ -z "${POSTGRES_PASSWORD:-}" ]; then
    echo "POSTGRES_PASSWORD is not set: the database would be open to every pod. Set it and start again." >&2
    exit 1
  fi
  initdb --pgdata="$PGDATA" --username="$user" --pwfile=/dev/stdin --auth=scram-sha-256 --encoding=UTF8 --locale=C <<END
$POSTGRES_PASSWORD
END
  if [ "$database" != postgres ]; then
    echo "CREATE DATABASE \"$database\"" | postgres --single -D "$PGDATA" postgres
  fi
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
