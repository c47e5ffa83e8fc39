# `make demo` and `make test` do all set-up themselves, in .venv, on a machine with Python >= 3.11, git and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(4, os.cpu_count() or 1))')
# BLAS threads and test processes would fight for the same cores.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
# `make test-fast`: folders that need neither PyTorch nor a compiler, without the files that take longest.
FAST := $(addprefix tests/,core conformance spec tensor virtual runtime observe project) $(wildcard tests/test_*.py)
SLOW := $(addprefix tests/,core/test_files.py virtual/test_host_shortage.py virtual/test_host_budget.py \
	virtual/test_ties.py runtime/memory/test_snapshots.py runtime/memory/test_reuse_by_order.py runtime/test_system.py)
# `make test`: what it also runs over NumPy's implementations, after all tests over native kernels.
NUMPY := $(addprefix tests/oracle/operators/test_,pointwise.py reductions.py numerics.py)
# Hundreds of tests start processes: compiled once, not by each of them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-fast test-all fmt compiled native test-compiled release lint docs docs-site bench ecosystem clean

demo: $(VENV)/ready-examples
	@mkdir -p out
	$(BIN)/flambeau run --devices 2 --trace out/digits.html --trace out/digits.json --picture out/digits.svg examples/digits.py

test: $(VENV)/ready-test lint
	if command -v $${CXX:-c++} > /dev/null; then $(MAKE) native; fi
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests
	FLAMBEAU_NATIVE=off $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(NUMPY)

test-fast: $(VENV)/ready-test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(FAST) $(SLOW:%=--ignore=%)

# The exhaustive runs: more seeds, more Hypothesis examples, and everything over the compiled build.
test-all: $(VENV)/ready-test $(VENV)/ready-docs lint
	FLAMBEAU_TESTS=exhaustive $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests
	$(MAKE) test-compiled

# The hot path and native kernels, compiled (docs/design.md, "The compiled build"): out/compiled has the wheel, and it installed.
compiled: $(VENV)/ready
	rm -rf out/compiled
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w out/compiled .
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target out/compiled/site out/compiled/*.whl

# The library of native kernels for the CPU and virtual GPUs (docs/design.md, "Native kernels"), in src, where this
# checkout's programs find it. Does nothing if it has the present sources.
native: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m flambeau.driver.host.kernels.native.build

# What a release publishes, in out/release: the sdist, the pure wheel and, with a C compiler, this platform's compiled
# one. Each is installed in an empty environment and tried.
release: $(VENV)/ready-release
	rm -rf out/release
	$(BIN)/python -m build -o out/release .
	if command -v $${CC:-cc} > /dev/null; then $(MAKE) compiled && cp out/compiled/*.whl out/release; fi
	$(BIN)/python -m twine check --strict out/release/*
	$(PYTHON) tools/try_install.py out/release/*

# The same tests over it, but those that change Flambeau's own code to see whether that is noticed.
test-compiled: compiled $(VENV)/ready-test
	PYTHONPATH=$(CURDIR)/out/compiled/site $(BIN)/python -m pytest -o pythonpath=tests -n $(JOBS) --dist worksteal tests \
		--ignore tests/hunt/test_mutants.py --deselect tests/hunt/test_rotating_streams.py::test_an_allocator_that_forgets_to_ask_is_caught

fmt: $(VENV)/ready-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))

# The pages and the stubs that are generated. Tests compare them with what this writes.
docs: $(VENV)/ready-test
	$(BIN)/python -m tools.pages.operator_page tests/goldens/torch_names.txt > docs/operators.md
	$(BIN)/python -m tools.pages.contents_page tests/goldens/torch_modules.txt tests/goldens/torch_module_paths.txt > docs/contents.md
	$(BIN)/python -m tools.pages.coverage_page tests/goldens/cuda_names.txt > docs/coverage.md
	$(BIN)/python -m tools.pages.performance_page bench/results > docs/performance.md
	$(BIN)/python -m bench.accuracy page
	$(BIN)/python -m streambugs --page > docs/streambugs.md
	$(BIN)/python -m ecosystem.page > docs/ecosystem.md
	$(BIN)/python tools/stubs.py

# The site of docs/ in out/site, with its reference and gallery: mkdocs.yml.
docs-site: $(VENV)/ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# The benchmarks that need no GPU; `python -m bench` lists all.
bench: $(VENV)/ready-test
	$(BIN)/python -m bench overhead allocator races explore imports

# Public packages on Flambeau, in an environment without PyTorch: its packages are all pinned, hence --no-deps.
# REFERENCE=PYTHON also runs the programs on that interpreter's PyTorch.
ecosystem: $(VENV)-ecosystem/ready
	$(PYTHON) -m ecosystem --python $(VENV)-ecosystem/bin/python $(if $(REFERENCE),--reference $(REFERENCE))

clean:
	rm -rf $(VENV) $(VENV)-ecosystem out

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/ready-examples: $(VENV)/ready
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[examples]'
	@touch $@

# The oracle is PyTorch's CPU build. Without it its tests skip, saying so; with CI set they fail.
$(VENV)/ready-test: $(VENV)/ready
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,examples,lint]'
	-$(BIN)/python -m pip install -q --disable-pip-version-check 'torch==2.13.0'
	@touch $@

$(VENV)/ready-release: $(VENV)/ready
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[release]'
	@touch $@

$(VENV)/ready-docs: $(VENV)/ready
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]'
	@touch $@

$(VENV)-ecosystem/ready: ecosystem/requirements.txt
	$(PYTHON) -m venv $(VENV)-ecosystem
	$(VENV)-ecosystem/bin/python -m pip install -q --disable-pip-version-check --no-deps -r ecosystem/requirements.txt
	@touch $@
