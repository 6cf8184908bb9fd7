# One command for each thing a developer does. Underneath are plain CMake presets, ctest and pytest:
# use them directly where you like.
SHELL := bash
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python

# The build whose libraries and command line the Python tests, demo and benchmarks use.
export OPBRIDGE_BUILD ?= $(CURDIR)/build/release

# Compile each thing once, in whichever checkout: CMake reads the launchers on first configure.
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
export CMAKE_CUDA_COMPILER_LAUNCHER := ccache
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
endif

# Tracked and new files alike, never what is built.
files = git ls-files -z -co --exclude-standard --deduplicate
cxx_files = $(files) '*.h' '*.cpp' '*.cu' '*.cuh'

.PHONY: help setup build asan matrix demo test check bench aarch64 format lint tidy clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup:  ## install what building and testing need (idempotent)
	@scripts/setup.sh

build: setup  ## build everything, preset release
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

asan: setup  ## build preset asan (address and undefined-behaviour sanitizers)
	cmake --preset asan
	cmake --build --preset asan -j $(JOBS)

matrix: setup  ## fetch every ONNX Runtime version, and what others ship, to test with
	@scripts/ort_matrix.sh
	@scripts/third_party.sh

demo: build  ## from RGB-D frames to poses, and an operator of one's own: the guided examples
	scripts/demo.sh

test: build asan matrix  ## every test: C++, C++ under sanitizers, Python, all ONNX Runtime versions
	ctest --preset release --no-tests=error -j $(JOBS)
	ctest --preset asan --no-tests=error -j $(JOBS)
	$(PYTHON) -m pytest tests -n $(JOBS)

check: build  ## the quick tests, for while you work
	ctest --preset release --no-tests=error -j $(JOBS)
	$(PYTHON) -m pytest tests -n $(JOBS) -m "not slow"

bench: setup  ## time the operators against what a user would pick instead; RIVALS=1 installs those first
	$(if $(RIVALS),scripts/bench_rivals.sh)
	cmake --preset release -DOPBRIDGE_BENCH=ON
	cmake --build --preset release -j $(JOBS)
	$(PYTHON) bench/run.py

aarch64: build  ## cross-compile the operators and run every case of theirs under qemu
	scripts/check_aarch64.sh

format: setup  ## format C++, CUDA and Python in place
	$(cxx_files) | xargs -0 -r .venv/bin/clang-format -i
	.venv/bin/ruff check --fix-only --quiet .
	.venv/bin/ruff format .

lint: setup  ## check format, Python style and spelling
	$(cxx_files) | xargs -0 -r .venv/bin/clang-format --dry-run --Werror
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(files) | xargs -0 .venv/bin/codespell

tidy: build  ## look for bugs with clang-tidy (slow)
	.venv/bin/pip install -qq --disable-pip-version-check -r requirements/tidy.txt
	$(files) 'src/*.cpp' 'adapters/*.cpp' 'ops/*.cpp' 'cli/*.cpp' | \
	  xargs -0 -r -n 1 -P $(JOBS) .venv/bin/clang-tidy --quiet -p build/release

clean:  ## remove what was built; keep what was downloaded (build/deps, build/ort, .venv)
	rm -rf build/{dev,release,cuda,asan,tsan}
