# One command each: `make run` starts a broker, `make test` checks everything. Both install what they need when run as root.

# The language version in go.mod is newer than many installed Go commands, which fetch this toolchain by themselves.
export GOTOOLCHAIN := go1.27.3
# Settings of a developer's shell must not change what is built or tested.
export GOFLAGS :=

# A source tree without usable version control (an archive, another owner's checkout) builds all the same.
BUILDVCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)
TOOL := go tool -modfile=tools/go.mod
FUZZTIME ?= 30s
CHAOSTIME ?= 30m
CHAOSSEED ?= 0

.PHONY: help run quickstart build man release test dashboard dashboard-check screenshots check lint manifests vulncheck fuzz chaos bench bench-quick bench-peers clean

## run: install what is missing, build, and serve on port 6632
run:
	@tools/setup.sh run
	@$(MAKE) --no-print-directory build
	@exec bin/queen serve

## help: what can be made
help:
	@sed -n 's/^## //p' Makefile

## quickstart: send a file through the running broker (on PORT) and compare what comes out
quickstart:
	@go run ./examples/quickstart -url http://localhost:$${PORT:-6632}

## build: bin/queen and bin/queenctl
build:
	go build -buildvcs=$(BUILDVCS) -o bin/ ./cmd/...

## man: manual pages of queenctl below bin/man
man:
	go run ./cmd/queenctl man bin/man

## release: static programs for linux/amd64 and linux/arm64 in bin/release, with checksums and a bill of materials (CycloneDX)
release:
	@rm -rf bin/release && mkdir -p bin/release/buffers
	@for arch in amd64 arm64; do for program in queen queenctl; do \
		echo "bin/release/$$program-linux-$$arch"; \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build -trimpath -buildvcs=$(BUILDVCS) -ldflags '-s -w -buildid=' -o bin/release/$$program-linux-$$arch ./cmd/$$program || exit 1; \
	done; done
	$(TOOL) cyclonedx-gomod bin -json -noserial -version "$$(go run ./cmd/queen version | cut -d' ' -f2)" -output bin/release/queen.cdx.json bin/release/queen-linux-amd64
	cd bin/release && sha256sum queen-* queenctl-* queen.cdx.json > SHA256SUMS && sha256sum --check --quiet SHA256SUMS

## test: everything that must hold before a change lands
test:
	@tools/setup.sh test
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory dashboard-check
	go test -race -shuffle=on -timeout 20m ./...

## dashboard: build the console from dashboard/src into dashboard/dist, which is committed
dashboard: dashboard/node_modules/.package-lock.json
	cd dashboard && npm run --silent build

## dashboard-check: types, unit tests, and that dashboard/dist is what dashboard/src makes
dashboard-check: dashboard/node_modules/.package-lock.json
	cd dashboard && npm run --silent check && npm run --silent test
	@built=$$(mktemp -d) && cd dashboard && npx vite build --outDir "$$built" --emptyOutDir --logLevel warn && node build/size.mjs "$$built" && \
	{ diff -r "$$built" dist || { echo "dashboard/dist is not what dashboard/src makes: run make dashboard and commit it"; rm -rf "$$built"; exit 1; }; }; \
	rm -rf "$$built"

## screenshots: the pictures of docs/screenshots, made by the test that drives the console
screenshots: dashboard/node_modules/.package-lock.json
	QUEEN_SCREENSHOTS=$(CURDIR)/docs/screenshots go test -count=1 ./test/dashboard

dashboard/node_modules/.package-lock.json: dashboard/package-lock.json
	cd dashboard && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

## check: formatting, vet, staticcheck
check:
	@unformatted=$$($(TOOL) gofumpt -l .) || exit 1; \
	if [ -n "$$unformatted" ]; then echo "not formatted with gofumpt:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(TOOL) staticcheck ./...

## lint: the linters of .golangci.yml, with an installed golangci-lint
lint: check
	golangci-lint run

## manifests: deploy/kubernetes against the types of the Kubernetes API, strictly
manifests:
	cd tools/manifests && go run . $(CURDIR)/deploy/kubernetes/*.yaml

## vulncheck: known vulnerabilities that the program reaches, by the Go vulnerability database of the day, which is also a module
vulncheck:
	@dir=$$(go mod download -json golang.org/x/vulndb@latest | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') && db=$$(mktemp -d) && \
	go run golang.org/x/vulndb/cmd/indexdb@latest -vulns "$$dir/data/osv" -out "$$db" && $(TOOL) govulncheck -db "file://$$db" ./...; \
	status=$$?; rm -rf "$$db"; exit $$status

## fuzz: every fuzz target for FUZZTIME
fuzz:
	@for target in $$(grep -rhoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/func //' | sort -u); do \
		for package in $$(grep -rlE --include='*_test.go' "^func $$target\(" . | xargs -n1 dirname | sort -u); do \
			echo "$$package $$target"; go test "$$package" -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) || exit 1; \
		done; \
	done

## chaos: brokers, database, network and disk broken for CHAOSTIME, as CHAOSSEED says (0 draws one); transactions in random order for a minute
chaos:
	@tools/setup.sh test
	go test ./test/faults -run 'TestTransactionsInRandomOrderNeverFail$$' -count=1 -v -args -faults.transactions=1m
	go test ./test/chaos -run 'TestChaos$$' -count=1 -timeout 0 -v -args -chaos.duration=$(CHAOSTIME) -chaos.seed=$(CHAOSSEED)

## bench-quick: the scenarios that fit into five minutes; docs/performance.md says what the columns mean
bench-quick:
	@tools/setup.sh run
	go run ./bench -repetitions 1

## bench: every scenario, three times; takes hours
bench:
	@tools/setup.sh run
	go run ./bench -scenarios ceiling-1,ceiling-16,segments-1,segments-16,segments-64,segments-256,rows,push-100,push-1,drain,pipeline,sparse,cardinality,longpoll,latency,backlog,dedup,soak

## bench-peers: the same load on Queen and on other queues, a quarter of an hour, see bench/peers/README.md
bench-peers:
	@tools/setup.sh peers
	cd bench/peers && go run -mod=mod . && go run -mod=mod . -payload order

clean:
	rm -rf bin dashboard/node_modules
