# Everything is installed into .venv; nothing else on the machine is changed.
#   make train                        install and train the example
#   make train ARGS=--fresh           the same with an option of `clustertrain run`
#   make train TORCH_INDEX=URL        torch from another index, such as PyTorch's CPU builds: docs/get-started/install.md
.PHONY: help train unit test test-faults test-gpu check fmt docs docs-serve docs-test bench bench-quick bench-slurm bench-k8s image compose-up compose-down submit-slurm submit-k8s kube-tools constraints clean
.DEFAULT_GOAL := help

PYTHON ?= python3
JOB ?= examples/digits/job.yaml
FOLDER ?= build
VENV ?= .venv
ENGINE ?= $(notdir $(firstword $(shell command -v podman docker)))
IMAGE ?= localhost/clustertrain:dev
TARGET ?= cpu
BIN := $(VENV)/bin
TRAIN = $(BIN)/clustertrain run $(JOB) $(ARGS)
# A Ray job starts in 40 s without bytecode, in 15 s with it.
UV_INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

# Folders without a unit test, which are not even imported; tests/conftest.py decides on the others.
NOT_UNIT := docker examples gpu interleavings kubernetes slurm whole

# After Ctrl-C the shell waits for the end of the run, which prints how to continue; `Error 75` would say less.
train: $(VENV)/.installed  ## install, then train the digits example on two CPU workers; ARGS=--fresh to start over
	@echo "$(TRAIN)"; trap 'interrupted=yes' INT; $(TRAIN); code=$$?; test -n "$$interrupted" || exit $$code

unit: $(VENV)/.installed  ## install, then run the tests that start nothing: no root, no Ray, no cluster; a minute
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --timeout=20 --durations=10 -m unit $(addprefix --ignore=tests/,$(NOT_UNIT)) $(UNIT_ARGS)
	@echo "make unit left out whole runs, clusters, containers, S3 servers, ranks of torch and tests marked slow: make test"

test: $(VENV)/.installed $(if $(shell command -v go),$(BIN)/versitygw)  ## install, then run every test that this machine can run, except the long ones; TESTS=PATHS for some
	$(BIN)/python -m pytest $(TESTS)

test-faults: $(VENV)/.installed $(if $(shell command -v go),$(BIN)/versitygw)  ## install, then run the long tests: whole runs under injected faults
	CLUSTERTRAIN_REQUIRE=faults,nightly $(BIN)/python -m pytest -m "faults or nightly"

test-gpu:  ## run the GPU tests and print what they measure; needs only torch, numpy and pytest (whole runs: clustertrain installed); GPU_SUITE_JSON=FILE
	PYTHONPATH=src $(PYTHON) -m pytest -c tests/gpu/gpu.ini --rootdir=. --confcutdir=tests/gpu -rs -m gpu tests/gpu

check: $(VENV)/.installed $(if $(shell command -v go),$(BIN)/actionlint)  ## run ruff, mypy --strict on src, import-linter, and actionlint where there is Go
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports --no-cache
	if test -x $(BIN)/actionlint; then $(BIN)/actionlint; fi

fmt: $(VENV)/.installed  ## format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(VENV)/.installed  ## build the site of the documentation into build/site; it also opens from the disk, search included
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: $(VENV)/.installed  ## show the site at http://127.0.0.1:8000, and build it again after each change; needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

docs-test: docs  ## build the site, then test its links, code blocks and commands
	$(BIN)/python -m pytest tests/test_docs.py tests/test_examples.py tests/whole/test_python_page.py

bench: $(VENV)/.installed $(BIN)/versitygw  ## measure start, speed, memory, recovery and saves against other launchers; FOLDER=on the disk
	$(BIN)/python benchmarks/bench.py --folder $(FOLDER) $(BENCH_ARGS)

bench-quick: $(VENV)/.installed  ## the same in one round of 3 minutes
	$(BIN)/python benchmarks/bench.py --folder $(FOLDER) --json build/bench-quick.json --quick $(BENCH_ARGS)

bench-slurm: $(VENV)/.installed  ## measure the start on two SLURM nodes against Ray's own scripts; as root, 15 minutes
	$(BIN)/python benchmarks/slurm_start.py

bench-k8s: $(VENV)/.installed kube-tools  ## measure the start of a RayJob against a plain one; as root, 15 minutes, plus building the tools
	$(BIN)/python benchmarks/kube_start.py

submit-slurm: $(VENV)/.installed  ## install, then submit a job to a SLURM cluster: JOB=slurm/digits.yaml
	$(BIN)/clustertrain submit --to slurm $(JOB)

image:  ## build the container image: TARGET=cpu or gpu, IMAGE, ENGINE, BASE, TORCH_INDEX, CA_BUNDLE (docs/guides/images.md)
	ENGINE="$(ENGINE)" IMAGE="$(IMAGE)" TARGET="$(TARGET)" BASE="$(BASE)" TORCH_INDEX="$(TORCH_INDEX)" \
	  CA_BUNDLE="$(CA_BUNDLE)" docker/build.sh

compose-up:  ## start a Ray head, two workers, an S3 server and TensorBoard on this machine: docker/compose.yaml
	ENGINE="$(ENGINE)" IMAGE="$(IMAGE)" docker/compose.sh up

compose-down:  ## stop what compose-up started and delete its volumes
	ENGINE="$(ENGINE)" IMAGE="$(IMAGE)" docker/compose.sh down

submit-k8s: $(VENV)/.installed  ## install, then submit a job to Kubernetes: JOB=k8s/digits.yaml IMAGE=that of the job
	$(BIN)/clustertrain submit --to kubernetes $(JOB)$(if $(filter file,$(origin IMAGE)),, --set image=$(IMAGE))

kube-tools: $(VENV)/kube/.built  ## build the Kubernetes for the tests; needs Go, takes 10 minutes once

constraints: $(VENV)/.installed  ## recompile requirements/*.txt from requirements/*.in and pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 --all-extras \
	  --no-emit-index-url --custom-compile-command "make constraints" \
	  requirements/constraints.in pyproject.toml -o requirements/constraints.txt
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 --extra train \
	  --no-emit-index-url --custom-compile-command "make constraints" --constraints requirements/constraints.txt \
	  requirements/image.in pyproject.toml -o requirements/image.txt

clean:  ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# An S3 server for the tests of S3; they are skipped without it. What only debuggers read is left out, and the
# compiler collects no garbage before it has 1 GiB: a third less of its time.
$(BIN)/versitygw:
	mkdir -p $(BIN)
	GOBIN=$(abspath $(BIN)) CGO_ENABLED=0 GOGC=off GOMEMLIMIT=1GiB go install -trimpath \
	  -gcflags all=-dwarf=false -ldflags "-s -w" github.com/versity/versitygw/cmd/versitygw@v1.8.0 \
	  || echo "versitygw could not be built: the tests that need it are skipped" >&2

# The linter of .github/workflows.
$(BIN)/actionlint:
	mkdir -p $(BIN)
	GOBIN=$(abspath $(BIN)) CGO_ENABLED=0 go install -trimpath github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 \
	  || echo "actionlint could not be built: make check does not read the workflows" >&2

# The Kubernetes for the tests, built from Go modules.
KUBE_TOOLS := tests/clusters/kube_tools
$(VENV)/kube/.built: $(addprefix $(KUBE_TOOLS)/,go.mod go.sum build.sh coredns/main.go)
	$(KUBE_TOOLS)/build.sh $(VENV)/kube
	touch $@

# requirements/constraints.txt contains all dependencies with hashes, so with --no-deps nothing else is fetched.
$(VENV)/.installed: $(VENV)/constraints.txt pyproject.toml
	@echo "Installing into $(VENV): $(if $(TORCH_INDEX),torch from $(TORCH_INDEX),torch with CUDA (5.5 GB in all; for CPUs only, about 2 GB: make TORCH_INDEX=https://download.pytorch.org/whl/cpu)), Ray and the tools of the tests"
	$(PYTHON) -m venv $(VENV)
	awk '/^[^ #]/ {keep = /^uv==/} keep' requirements/constraints.txt > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/uv.txt
	$(if $(TORCH_INDEX),$(UV_INSTALL) --no-deps --index-url $(TORCH_INDEX) "$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements/constraints.txt)")
	$(UV_INSTALL) --require-hashes --no-deps -r $<
	$(UV_INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q src  # an editable install is not compiled by uv
	touch $@

# With TORCH_INDEX, without torch, which comes from that index, and without the packages that only its CUDA build needs.
$(VENV)/constraints.txt: requirements/constraints.txt
	mkdir -p $(VENV)
	awk -v index_url="$(TORCH_INDEX)" \
	  '/^[^ #]/ {keep = index_url == "" || !/^(torch|triton)==|^(nvidia|cuda)-/} keep' $< > $@
