GO          ?= go
FUZZTIME    ?= 10s
STATICCHECK := bin/staticcheck-0.8.2-$(shell $(GO) env GOVERSION)

export FUZZTIME

.PHONY: help build build-nocgo demo test test-short race lint tidy fuzz bench smoke install-deps clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s%s\n", $$1, $$2 }' Makefile

build: ## build bin/workerd
	$(GO) build -o bin/workerd ./cmd/workerd

build-nocgo: ## check that everything builds without cgo, for both architectures
	CGO_ENABLED=0 GOARCH=amd64 $(GO) build ./...
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build ./...

demo: ## run the demo; installs what it needs where it may
	@.ci/install demo || echo "Going on with what is there."
	$(GO) run ./cmd/workerd demo

test: install-deps ## run everything that CI runs; installs what it needs where it may
	@.ci/stages lint tidy build-nocgo race fuzz bench smoke

test-short: ## run the fast tests only
	$(GO) test -short ./...

race: ## run all tests with the race detector
	$(GO) test -race ./...

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

install-deps: ## install what the tests need, as root; else print the line to run
	@.ci/install test

clean: ## remove what was built
	rm -rf bin
