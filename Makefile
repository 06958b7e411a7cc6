GO          ?= go
FUZZTIME    ?= 10s
STATICCHECK := bin/staticcheck-0.8.2-$(shell $(GO) env GOVERSION)

export FUZZTIME

# What NVML deprecates is no news to whoever builds this.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

# How long `make chaos` goes on; CHAOS_SEED repeats the faults of an earlier run.
CHAOS       ?= 10m
CHAOS_SEED  ?= 0

# How long `make soak` goes on.
SOAK        ?= 30m

# 1: `make test` also sets up docker, podman and Apptainer on this machine and tests with them; as root.
ENGINES     ?= 0

.PHONY: help build build-nocgo demo test test-short race lint tidy fuzz bench smoke chaos chaos-short soak scale engine-setup engine-images engines systemd install-deps clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s%s\n", $$1, $$2 }' Makefile

# NVML is loaded at run time, so its functions must not be looked for at start, which some compilers order by default.
build: ## build bin/workerd
	$(GO) build -ldflags=-extldflags=-Wl,-z,lazy -o bin/workerd ./cmd/workerd

build-nocgo: ## check that everything builds without cgo, for both architectures
	CGO_ENABLED=0 GOARCH=amd64 $(GO) build ./...
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build ./...

demo: ## run the demo; installs what it needs where it may
	@.ci/install demo || echo "Going on with what is there."
	$(GO) run ./cmd/workerd demo

test: install-deps ## run everything that CI runs; installs what it needs where it may
	@.ci/stages $(if $(filter 1,$(ENGINES)),engine-images@) lint tidy build-nocgo fuzz bench smoke \
		$(if $(filter 1,$(ENGINES)),engine-images) race chaos-short $(if $(filter 1,$(ENGINES)),systemd@ engines systemd)

test-short: ## run the fast tests only
	$(GO) test -short ./...

race: ## run all tests with the race detector
	$(GO) test -race -timeout 20m $(if $(filter 1,$(ENGINES)),-skip '^TestLive') ./...

lint: $(STATICCHECK) ## gofmt, go vet, staticcheck
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
		if [ -n "$$unformatted" ]; then echo "gofmt -w is due:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(STATICCHECK) ./...

# Built once and kept, so that it works offline and go.mod stays clean.
$(STATICCHECK):
	GOBIN=$(CURDIR)/bin $(GO) install honnef.co/go/tools/cmd/staticcheck@v0.8.2
	mv bin/staticcheck $@

tidy: ## check that go.mod and go.sum are tidy
	$(GO) mod tidy -diff

fuzz: ## run each fuzz target for FUZZTIME
	@.ci/fuzz

bench: ## run each benchmark once, to see that it runs; for figures use go test -bench
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...

smoke: ## run the smoke test of every provider through the real binary
	@.ci/smoke

chaos: ## break everything for CHAOS (10m), and check that nothing is lost or left
	@.ci/chaos $(CHAOS) $(CHAOS_SEED)

chaos-short: ## the same for two minutes, as CI does
	@.ci/chaos $(if $(filter 1,$(ENGINES)),1m,2m) 0 venv
	@$(if $(filter 1,$(ENGINES)),.ci/chaos 2m 0 engines)

soak: ## load and idleness in turns for SOAK (30m), and check that workerd does not grow
	@.ci/soak $(SOAK)

scale: ## measure a thousand providers, two hundred workers, ten thousand connections
	ulimit -n 20000 && $(GO) test -count=1 -run '^TestScale$$' -v ./cmd/workerd -scale

engine-setup: ## set up container engines and a test user on this machine, as root
	@.ci/engines

engine-images: engine-setup ## build the images of the engine tests
	@.ci/images

engines: engine-images ## run the tests that need container engines, as the test user
	@.ci/test-engines

systemd: engine-setup ## run the tests that need a booted systemd, in a container
	@.ci/systemd

install-deps: ## install what the tests need, as root; else print the line to run
	@.ci/install test $(if $(filter 1,$(ENGINES)),engines)

clean: ## remove what was built
	rm -rf bin .ci/cache
