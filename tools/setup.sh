#!/bin/sh
# Installs what the Makefile's targets need and this machine lacks.
#
#   setup.sh run    PostgreSQL's server programs, for the private database of a broker without one, and the authorities that Go's downloads need
#   setup.sh test   also a C compiler for the race detector, the plpgsql checker, PgBouncer, and Node, npm and a browser for the console
#   setup.sh peers  as run, and the other queues that bench/peers compares with; none is started as a service
#
# As root on Debian and its relatives it installs through apt-get; elsewhere it says in one line what to install.
set -eu

min_major=15

say() { echo "queen: $*" >&2; }

# server_bin prints the directory of the newest usable server programs.
server_bin() {
	best= best_major=0
	for program in "$(command -v postgres || true)" /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres /usr/local/pgsql*/bin/postgres \
		/opt/homebrew/opt/postgresql@*/bin/postgres /usr/local/opt/postgresql@*/bin/postgres; do
		[ -x "$program" ] || continue
		major=$("$program" --version 2>/dev/null | sed -n 's/.*(PostgreSQL) \([0-9]*\).*/\1/p')
		if [ "${major:-0}" -ge "$min_major" ] && [ "$major" -gt "$best_major" ]; then
			best=$(dirname "$(readlink -f "$program")") best_major=$major
		fi
	done
	[ -n "$best" ] && echo "$best"
}

# has_extension tells whether the server programs come with an extension.
has_extension() {
	bin=$(server_bin) || return 1
	[ -e "$("$bin/pg_config" --sharedir 2>/dev/null || echo "/usr/share/postgresql/$(basename "$(dirname "$bin")")")/extension/$1.control" ]
}

# Debian keeps it out of the paths of ordinary users.
has_pooler() { command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]; }

# The race detector links C code.
can_race() { command -v gcc >/dev/null && [ -e /usr/include/stdlib.h ]; }

# The console is built with Node 20 or newer.
has_node() { command -v npm >/dev/null && command -v node >/dev/null && [ "$(node --version | sed 's/^v\([0-9]*\).*/\1/')" -ge 20 ]; }

has_browser() { [ -n "${CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; }

# Debian 12 has Node 18; the npm registry has newer programs as packages. Its own npm goes with them: Debian's is bound to Debian's Node.
newer_node() {
	say "installing Node 22 and npm below /usr/local"
	npm install --global --prefix /usr/local --no-audit --no-fund --loglevel=error node@22 npm@10 >&2 </dev/null
	hash -r
}

# Go fetches its toolchain and modules over HTTPS; it looks for authorities in these places, and a minimal system has none.
has_authorities() {
	[ -n "${SSL_CERT_FILE:-}${SSL_CERT_DIR:-}" ] || [ "$(uname -s)" != Linux ] || [ -e /etc/ssl/certs/ca-certificates.crt ] ||
		[ -e /etc/pki/tls/certs/ca-bundle.crt ] || [ -e /etc/ssl/ca-bundle.pem ] || [ -e /etc/pki/tls/cacert.pem ] ||
		[ -e /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem ] || [ -e /etc/ssl/cert.pem ]
}

can_install() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

updated=
# install runs apt-get without questions, and is silent unless it fails.
install() {
	say "installing $*"
	log=$(mktemp)
	export DEBIAN_FRONTEND=noninteractive
	if { [ -n "$updated" ] || apt-get update; } >"$log" 2>&1 </dev/null &&
		apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1 </dev/null; then
		updated=yes
		rm -f "$log"
		return
	fi
	cat "$log" >&2
	rm -f "$log"
	say "apt-get could not install $*"
	exit 1
}

# Debian's server package would also create and start a cluster named main, which nobody asked for.
install_server() {
	install postgresql-common
	no_cluster=/etc/postgresql-common/createcluster.d/queen-setup.conf
	trap 'rm -f "$no_cluster"' EXIT
	mkdir -p "$(dirname "$no_cluster")"
	echo 'create_main_cluster = false' >"$no_cluster"
	package=$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9][0-9]*\)$/\1/p' | head -n 1)
	if [ "$(echo "$package" | tr -dc 0-9 | grep . || echo 0)" -lt "$min_major" ]; then
		say "this system offers ${package:-no PostgreSQL}: install the server programs of PostgreSQL $min_major or newer, or set DATABASE_URL"
		exit 1
	fi
	install "$package"
	rm -f "$no_cluster"
	trap - EXIT
}

# external_database tells whether the environment names a database, so that no private one is started.
external_database() {
	[ -n "${DATABASE_URL:-}${PG_HOST:-}${PG_PORT:-}${PG_USER:-}${PG_PASSWORD:-}${PG_DATABASE:-}${PG_DB:-}" ]
}

setup_authorities() {
	if has_authorities; then
		return
	fi
	if can_install; then
		install ca-certificates
	else
		say "no certificate authorities are installed, which Go needs to download what it builds with: install them (on Debian: apt-get install ca-certificates)"
	fi
}

setup_run() {
	setup_authorities
	if external_database || server_bin >/dev/null; then
		return
	fi
	if can_install; then
		install_server
	else
		say "PostgreSQL $min_major or newer is not installed: install its server package (on Debian: apt-get install postgresql), or set DATABASE_URL"
	fi
}

# install_stopped installs a package with a service that is neither started now nor at the next boot.
install_stopped() {
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod +x "$policy"
	else
		policy=
	fi
	install "$1"
	update-rc.d "$1" disable >/dev/null 2>&1 || say "$1 may start at the next boot"
	[ -z "$policy" ] || rm -f "$policy"
	trap - EXIT
}

setup_test() {
	setup_authorities
	missing=
	server_bin >/dev/null || missing="$missing postgresql"
	has_extension plpgsql_check || missing="$missing postgresql-plpgsql-check"
	can_race || missing="$missing gcc libc6-dev"
	has_pooler || missing="$missing pgbouncer"
	has_node || missing="$missing nodejs npm"
	has_browser || missing="$missing chromium"
	[ -n "$missing" ] || return 0
	if ! can_install; then
		say "the tests need:$missing (package names of Debian; the checker is postgresql-NN-plpgsql-check). Install them and try again"
		exit 1
	fi
	can_race || install gcc libc6-dev
	has_pooler || install_stopped pgbouncer
	has_node || install nodejs npm
	has_node || newer_node
	has_node || { say "this system's Node is older than 20, which the console is built with: install a newer one"; exit 1; }
	has_browser || install chromium
	server_bin >/dev/null || install_server
	has_extension plpgsql_check || install "postgresql-$("$(server_bin)/postgres" --version | sed -n 's/.*(PostgreSQL) \([0-9]*\).*/\1/p')-plpgsql-check"
}

# A peer that cannot be installed is left out of the comparison.
setup_peers() {
	setup_run
	missing=
	[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing="$missing rabbitmq-server"
	command -v redis-server >/dev/null || missing="$missing redis-server"
	[ -n "$missing" ] || return 0
	if ! can_install; then
		say "left out of the comparison, because they are not installed (package names of Debian):$missing"
		return 0
	fi
	for package in $missing; do
		install_stopped "$package"
	done
}

case "${1:-}" in
run) setup_run ;;
test) setup_test ;;
peers) setup_peers ;;
*)
	say "usage: $0 run|test|peers"
	exit 2
	;;
esac
