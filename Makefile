# The front door. Every target sets up what it needs; `make help` lists them.

PRESET ?= release
PREFIX ?= /usr/local
build  := build/$(PRESET)
c_folders := $(wildcard src tests bench include train)

# What scripts started from here read; all optional. A dollar sign in them is just a character.
override MODEL := $(value MODEL)
override PROMPT := $(value PROMPT)
override ARCH := $(value ARCH)
override N := $(value N)
export LLAMA_DIR ATS_CACHE MODEL PROMPT SEED ARCH N ROUNDS PRESET STEPS

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# With the folders of llama.cpp in the environment. A sanitizer preset uses an equally
# instrumented ggml.
define environment
eval "$$(scripts/setup/env.sh)"
case $(PRESET) in
    asan) export ATS_LLAMA_BIN=$$ATS_GGML_ASAN_BIN ;;
    tsan) export ATS_LLAMA_BIN=$$ATS_GGML_TSAN_BIN ;;
esac
endef

.PHONY: help
help: ## show this list
	@echo 'ATS: run a model across an accelerator and the CPU, with stock llama.cpp'
	echo
	echo '  make run               first run: sets everything up (about 15 minutes), then generates text'
	echo
	sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) |
	    while IFS=$$'\t' read -r target text; do printf '  make %-18s%s\n' "$$target" "$$text"; done
	echo
	echo 'Variables: MODEL=file.gguf PROMPT="..." for run; LLAMA_DIR=path for your own llama.cpp;'
	echo 'PRESET=release|debug|asan|tsan; ATS_CACHE=path (default ~/.cache/ats); PREFIX=/usr/local'

.PHONY: setup
setup: ## install packages, fetch and build llama.cpp into the cache
	@scripts/setup/setup.sh run

.PHONY: build
build: setup ## build libggml-ats.so and ats (build/release)
	@case $(PRESET) in asan | tsan) scripts/setup/ggml-sanitized.sh $(PRESET) ;; esac
	$(environment)
	$(configure)
	cmake --build --preset $(PRESET) -j "$$ATS_JOBS"

# Quiet unless it fails. -D: a build folder must follow when llama.cpp moves.
define configure
cmake --preset $(PRESET) -DATS_LLAMA_SRC="$$ATS_LLAMA_SRC" -DATS_LLAMA_BIN="$$ATS_LLAMA_BIN" \
    --log-level=WARNING >/dev/null
endef

.PHONY: run
run: build ## generate text; MODEL= and PROMPT= choose what
	@$(environment)
	scripts/run.sh

.PHONY: test-setup
test-setup:
	@scripts/setup/setup.sh test

.PHONY: test
test: test-setup build ## run all tests
	@$(environment)
	scripts/test.sh

.PHONY: test-unit
test-unit: build ## run the unit tests only; PRESET=asan or tsan to sanitize
	@$(environment)
	ctest --preset $(PRESET) -L unit -j "$$ATS_JOBS"

.PHONY: peer-archs
peer-archs: test-setup build ## llama.cpp's test of all architectures; SEED=n ARCH=regex
	@$(environment)
	scripts/peer-archs.sh

.PHONY: schedules
schedules: test-setup build ## random schedules per kind of model against the CPU; N=2000 SEED=n (minutes)
	@$(environment)
	[ -z "$${SEED:-}" ] || export ATS_TEST_SEED=$$SEED
	ATS_SCHEDULES="$${N:-2000}" $(build)/bin/test_schedules

.PHONY: peer-ops-full
peer-ops-full: test-setup build ## llama.cpp's test of all operators, every case (long)
	@$(environment)
	scripts/peer-ops.sh --full

.PHONY: overhead
overhead: test-setup build ## measure what our being there costs
	@$(environment)
	scripts/overhead.sh

.PHONY: bench
bench: build ## llama.cpp against ATS, eight models on emulated rigs; ARGS="--models ..." (about an hour)
	@$(environment)
	python3 bench/compare/compare.py --build $(build) $(ARGS)

.PHONY: bench-quick
bench-quick: build ## the same for two models and short phases
	@$(environment)
	python3 bench/compare/compare.py --build $(build) --quick $(ARGS)

.PHONY: bench-predict
bench-predict: build ## `ats simulate` beside the last quick benchmark; ARGS="results.json --model-dir ..."
	@$(environment)
	python3 bench/compare/predict.py --build $(build) $(ARGS)

.PHONY: bench-published
bench-published: build ## the last benchmark beside the published evaluation; ARGS="results.json --model-dir ..."
	@$(environment)
	python3 bench/compare/published.py --build $(build) $(ARGS)

.PHONY: bench-pcie
bench-pcie: build ## what ATS gains by generation of PCIe, predicted for whole models (a minute)
	@$(environment)
	python3 bench/compare/pcie.py --build $(build)

.PHONY: load-adapt
load-adapt: build ## static against load-aware decoding under load; ARGS="--ramp --long --model ..."
	@$(environment)
	python3 bench/load/load.py --build $(build) $(ARGS)

.PHONY: bench-bookkeeping
bench-bookkeeping: build ## measure what our own bookkeeping takes per token
	@$(environment)
	scripts/bookkeeping.sh

.PHONY: bench-recorder
bench-recorder: build ## measure what recording (ATS_TRACE) adds per token
	@$(environment)
	scripts/recorder-cost.sh

.PHONY: train
train: build ## train models/demo.gguf, or go on; STEPS=n (under two hours on two cores)
	@train/train.sh

# C files that differ from the last commit, or all with ALL=1 or without git.
define c_sources
{ if [ -z "$(ALL)" ] && git rev-parse -q --verify HEAD >/dev/null 2>&1; then
    git diff --name-only --diff-filter=d HEAD; git ls-files -o --exclude-standard
else
    find $(c_folders) -type f
fi; } | grep -E '\.[ch]$$' || true
endef

# SC2015, SC2034: `a && b || die` is meant so; variables are set for the file that sources.
.PHONY: lint
lint: build ## check format, C (changed files; ALL=1: all) and shell scripts
	@scripts/setup/packages.sh lint
	find $(c_folders) -name '*.[ch]' | xargs -r clang-format --dry-run -Werror
	mapfile -t sources < <($(c_sources))
	printf '%s\n' "$${sources[@]}" | grep '\.c$$' |
	    xargs -r -P "$$(nproc)" -n 4 clang-tidy --quiet -p $(build) 2>&1 |
	    grep -v 'warnings\? generated\.$$' || [ $${PIPESTATUS[2]} -eq 0 ]
	git ls-files -co --exclude-standard '*.sh' .ci/run | xargs -r shellcheck -x -P SCRIPTDIR -e SC2015,SC2034
	echo 'lint: clean'

.PHONY: format
format: ## format all C files in place
	@scripts/setup/packages.sh lint
	find $(c_folders) -name '*.[ch]' | xargs -r clang-format -i

.PHONY: install
install: build ## install to PREFIX
	@cmake --install $(build) --prefix "$(PREFIX)"

.PHONY: clean
clean: ## remove our builds; the cache with llama.cpp stays
	@rm -rf build
