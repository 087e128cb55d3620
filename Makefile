# `make demo` shows Slacktide on this machine, `make test` passes all tests; both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/tools
STAMP := $(VENV)/.slacktide-installed

.PHONY: help setup demo test lint check pytest fuzz tools cluster-tools kubelet-tools local-cluster image differential guest-tools test-kernel-v2 test-kubelet docs proto proto-baseline lock bench clean

help:
	@echo "make demo    set up, then show Slacktide at work on this machine (two minutes)"
	@echo "make test    set up, then lint and run all tests"
	@echo "make fuzz    a million hostile inputs for the parsers of kernel files"
	@echo "make setup   make $(VENV) only"
	@echo "make lint    ruff, mypy, import rules, protocol lint"
	@echo "make test-kernel-v2  the kernel tests alone, on a real cgroup v2 in an emulated guest"
	@echo "make tools   fetch FUSE, Prometheus, buildah and runc, which some tests need"
	@echo "make cluster-tools  build etcd, kube-apiserver and kube-scheduler, which the cluster tests need (5 minutes, once)"
	@echo "make local-cluster  a real control plane on this machine with Slacktide installed by the chart, until Ctrl-C"
	@echo "make image   the two container images, without a container engine"
	@echo "make test-kubelet  the agent beside a real kubelet in an emulated guest, with both cgroup drivers"
	@echo "make differential  our plugins against the stock scheduler on random clusters, with counts"
	@echo "make kubelet-tools  build kubelet and containerd for the guest of make test-kubelet"
	@echo "make guest-tools  fetch QEMU, a kernel and FUSE, which some tests need"
	@echo "make docs    the pages as a site, in docs/_build/html"
	@echo "make proto   generate slacktide/v1 from proto/"
	@echo "make proto-baseline  the wire contract of a release, which later ones are compared with"
	@echo "make lock    newest versions of all packages into constraints.txt"
	@echo "make clean   remove what make made in this tree"
	@echo "make bench   all benchmarks and docs/benchmarks.md (an hour, on a quiet machine)"

setup: $(STAMP)

# The constraints pin every package; byte code is made on first use, which halves the time of a fresh set-up.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "Slacktide needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/slacktide demo

test: setup lint tools cluster-tools kubelet-tools pytest

check: test

pytest: setup
	PATH="$$PATH:$(CURDIR)/$(TOOLS)/usr/bin" $(BIN)/python -m tests.run

# A million hostile inputs for the parsers of kernel files; for nightly runs.
fuzz: setup
	SLACKTIDE_FUZZ_EXAMPLES=1000000 $(BIN)/python -m pytest -q --timeout 0 tests/fuzz

# FUSE for the emulated resctrl, Prometheus for the import, buildah and runc for the image; without them those tests are
# skipped, with the reason.
# Prometheus is unpacked, not installed: that would start a service. The guest is for those who ask.
tools: setup
	@ldconfig -p 2> /dev/null | grep -q 'libfuse3\.so' || \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends libfuse3-3 > /dev/null 2>&1 || true
	@test -x $(TOOLS)/usr/bin/promtool || command -v promtool > /dev/null || \
	  { mkdir -p $(TOOLS) && cd $(TOOLS) && apt-get -qq download prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb; } \
	  > /dev/null 2>&1 || true
	@{ command -v buildah && command -v runc; } > /dev/null || \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends buildah runc > /dev/null 2>&1 || true

# The real control plane, from its published Go modules, into a cache outside the tree. Where it cannot be built
# the cluster tests are skipped, with the reason.
cluster-tools: setup
	@$(BIN)/python -m tests.cluster build > /dev/null || true
	@$(BIN)/python -m tests.deploy build > /dev/null || true

# kubelet, containerd and runc for the guest, and the guest itself.
kubelet-tools: setup cluster-tools
	@tests/kernel/guest-tools > /dev/null 2>&1 || true
	@$(BIN)/python -m tests.kubelet build > /dev/null || true

test-kubelet: setup kubelet-tools
	SLACKTIDE_KUBELET_DRIVERS=systemd,cgroupfs $(BIN)/python -m pytest -q tests/kubelet

# A control plane on this machine with Slacktide installed by the chart; the pods' commands run as processes.
local-cluster: setup cluster-tools
	$(BIN)/python -m tests.deploy up

# As root, with buildah: OCI archives and bills of materials in build/images.
image: setup
	$(BIN)/python deploy/image/build.py

docs: setup
	$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build/html

differential: setup cluster-tools
	$(BIN)/python -m tests.cluster.differential

guest-tools:
	tests/kernel/guest-tools

test-kernel-v2: setup guest-tools
	$(BIN)/python -m pytest -q tests/kernel/test_guest_v2.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy deploy/render.py deploy/schema.py deploy/certificates.py deploy/written.py
	$(BIN)/lint-imports
	$(BIN)/buf lint proto
	$(BIN)/python proto/generate.py --check
	$(BIN)/buf breaking proto --against proto/baseline.json

proto: setup
	$(BIN)/python proto/generate.py

# The released wire contract, which later ones must stay compatible with; renewed with each release only.
proto-baseline: setup
	$(BIN)/buf build proto --as-file-descriptor-set --exclude-source-info -o proto/baseline.json

# Newest versions that the ranges of pyproject.toml allow, as one file for all supported Pythons.
lock:
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	{ echo '# Versions that the checks ran with, for every Python that is supported. Renewed by `make lock`.'; \
	  $(VENV)-lock/bin/python -m pip freeze --exclude-editable | sort -f; } > constraints.txt
	rm -rf $(VENV)-lock

# On a machine that does nothing else: an hour. The page is made from what was kept.
bench: setup cluster-tools
	$(BIN)/python -m benchmarks.colocation --matrix --save
	$(BIN)/python -m benchmarks.reaction --save
	$(BIN)/python -m benchmarks.agent_cost --save
	$(BIN)/python -m benchmarks.crash --save
	$(BIN)/python -m benchmarks.forecast --save
	$(BIN)/python -m benchmarks.predictor --save
	$(BIN)/python -m benchmarks.scheduler --save
	$(BIN)/python -m benchmarks.extender --save
	$(BIN)/python -m benchmarks.page

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
