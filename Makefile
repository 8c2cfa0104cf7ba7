# Larder's front door. `make` lists what there is; CMakeLists.txt builds it.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
export JOBS

.DEFAULT_GOAL := help
.NOTPARALLEL: # two installations at once would wait for one lock, or fail
.PHONY: help run demo serve build test test-core test-one test-vllm test-gpu \
        test-shared vllm-drift bench bench-gpu bench-vllm check coverage \
        performance format tidy install uninstall deb wheel screenshots clean \
        deps-build deps-test deps-shared deps-check deps-wheel deps-deb \
        deps-vllm test-lmcache test-dynamo bench-lmcache test-sglang \
        deps-sglang

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { \
	    printf "  make %-13s %s\n", $$1, $$2 }' Makefile

run: build ## build, then the example engine: compute, restart, load
	@build/release/bin/engine demo

demo: build deps-vllm ## cold, restart, warm on real vLLM, with a picture
	@scripts/vllm-env 0.32.0
	@scripts/demo

serve: build ## a node with its dashboard, on the defaults; flags in ARGS
	@build/release/bin/larder serve $(ARGS)

build: deps-build ## the library, the program and the examples: build/release
	@scripts/build release

test: deps-test deps-vllm ## all tests; ends with "N passed, N failed"
	@scripts/run-tests dev

test-core: deps-test ## the quick loop: base, layout, wire, store and sim
	@scripts/run-tests dev --core

test-one: deps-test ## one test: T=node/model, or T=tests/e2e/test_cli.py
	@scripts/run-tests dev $(if $(filter %.py,$(T)),-R '^$$' --pytest,-R) $(T)

test-vllm: deps-build deps-test deps-vllm ## real vLLM; VERSIONS=0.29.0 or =all
ifeq ($(VERSIONS),all)
	@scripts/build release
	@scripts/vllm-releases
else
	@scripts/run-tests release --vllm $(VERSIONS)
endif

test-sglang: deps-test deps-sglang ## real SGLang on the CPU; ARGS=FILE
	@scripts/run-sglang-tests $(ARGS)

test-gpu: build ## what needs a GPU, and PyTorch for CUDA; PYTHON=python3
	@LARDER_BUILD=$(CURDIR)/build/release $(or $(PYTHON),python3) -B -m pytest \
		-p no:cacheprovider -rs tests/cuda

test-shared: deps-shared ## the shared tier, with servers that take minutes
	@scripts/run-shared-tests

test-lmcache: deps-build deps-test deps-vllm ## LMCache, with real vLLM
	@scripts/run-lmcache-tests

test-dynamo: deps-build deps-test ## the node's events, with Dynamo's indexer
	@scripts/run-dynamo-tests

vllm-drift: ## has every vLLM what the connector uses? Renews lists
	@scripts/vllm-drift

bench: build ## larder bench, then beside its peers; or ARGS="shm-get --size 1M"
	@build/release/bin/larder bench $(ARGS)
	@[ -n "$(ARGS)" ] || { bench/peers/setup && bench/peers/run.py; }

bench-vllm: build deps-vllm ## vllm serve with and without Larder; its costs
	@bench/vllm/setup
	@bench/vllm/run.py $(ARGS)
	@bench/vllm/overhead.py $(ARGS)

bench-lmcache: build deps-test deps-vllm ## LMCache's bench, beside two others
	@scripts/lmcache-env
	@bench/lmcache/run.py $(ARGS)

bench-gpu: build ## on a GPU: copies, equality, first tokens; ARGS=STAGE...
	@bench/gpu/run.py $(or $(ARGS),all)

check: deps-check ## all that takes longer; one step: make check STEPS="asan"
	@scripts/check $(STEPS)

coverage: deps-test ## executed lines of src/store, as a table
	@scripts/coverage

performance: ## renews the tables of docs/performance.md from bench/results
	@scripts/performance

format: ## clang-format over the C files
	@scripts/format

tidy: ## the fast static checks
	@scripts/tidy

install: deps-build ## library, programs, manual, unit (PREFIX, DESTDIR)
	@cmake --preset install --log-level=WARNING \
	    -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@scripts/build install
	@DESTDIR="$(DESTDIR)" cmake --install build/install
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

uninstall: ## removes what make install installed (DESTDIR as there)
	@DESTDIR="$(DESTDIR)" scripts/uninstall

deb: deps-deb ## Debian packages: build/packages/*.deb
	@scripts/build deb
	@scripts/deb build/deb build/packages

wheel: deps-wheel ## the Python package for other machines: build/wheel/*.whl
	@scripts/wheel

screenshots: deps-build deps-test ## the pictures of the dashboard, in docs/img
	@scripts/build install
	@scripts/screenshots $(ARGS)

clean: ## removes build/
	rm -rf build

deps-build deps-test deps-shared deps-check deps-wheel deps-deb deps-vllm \
deps-sglang: deps-%:
	@scripts/install-deps $*
