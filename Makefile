# Everything runs in its own virtual environment, .venv, made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
export OMP_NUM_THREADS ?= 1
export TRITON_DEFAULT_FP_FUSION ?= 1

.PHONY: demo test lint bench bench-proxy bench-index gpu-check model compiled soak overload clients test-vllm fuzz clean help

help:
	@echo "make demo        two real replicas, the gateway, real chats (ARGS=--json, ARGS=--serve)"
	@echo "make test        everything that needs no GPU"
	@echo "make lint        ruff and mypy"
	@echo "make bench       benchmarks with ratios (ARGS=--json)"
	@echo "make bench-proxy the data plane alone (ARGS='--peer smg --json': beside smg, which is installed for it)"
	@echo "make gpu-check   kernels on a GPU: correctness and ratios to the machine's roofs"
	@echo "make soak        a gateway and 64 misbehaving publishers for five minutes (ARGS='--minutes 1 --publishers 16')"
	@echo "make overload    ten minutes of twice the load a fleet can carry, with kills and rude clients (ARGS='--minutes 1')"
	@echo "make clients     the official openai and anthropic clients, and aiperf, against a gateway (ARGS='openai aiperf')"
	@echo "make test-vllm   a gateway before two real vLLM engines on the CPU; installs 3.5 GB in 15 minutes the first time"
	@echo "make fuzz        the index against dictionaries (ARGS='--operations 10000000 --processes 2')"
	@echo "make clean       remove what the build made"

$(READY): pyproject.toml constraints.txt
	@echo "making the virtual environment: takes a minute or two, most of it torch"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --quiet -c constraints.txt -e '.[replica,simulate,dev]'
	@touch $@

model: $(READY)
	@$(BIN)/trunkline model fetch smollm2 > /dev/null

compiled: $(READY)
	@$(BIN)/python -m radix.core.bake 2> /dev/null

demo: $(READY) compiled
	@$(BIN)/python -m benchmarks.demo $(ARGS)

test: $(READY) model compiled
	@$(BIN)/python -m pytest -n 2 --dist loadgroup --cov --cov-report=term:skip-covered $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: bench-proxy bench-index

bench-proxy: $(READY) compiled
	@$(BIN)/python -m benchmarks.proxy $(ARGS)

bench-index: $(READY)
	@$(BIN)/python -m benchmarks.index $(ARGS)

soak: $(READY) compiled
	@$(BIN)/python -m tests.soak $(ARGS)

overload: $(READY) compiled
	@$(BIN)/python -m tests.overload $(ARGS)

clients: $(READY) compiled
	@$(BIN)/python -m tests.clients $(ARGS)

test-vllm: $(READY) model compiled
	@$(BIN)/python -m tests.vllm $(ARGS)

fuzz: $(READY) compiled
	@$(BIN)/python -m tests.radix.fuzz $(ARGS)

gpu-check: $(READY)
	@$(BIN)/python -m kernels.gpu_check $(ARGS)

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage benchmarks/bin
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
