# Two commands do everything on a fresh machine: `make run` and `make test`.
# Needed: git, make, Python 3.11 or newer with venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OPENCOMPASS := .venv-opencompass
# Two threads on two busy cores are slower than one: OpenMP spins.
export OMP_NUM_THREADS ?= 1

# Defects that `make mutants` draws, and from what seed.
SEED ?= 1
COUNT ?= 150

.PHONY: run test fuzz faults mutants native native-or-not opencompass check lint format report bench browser \
  libaio clean

run: $(VENV)/installed
	$(BIN)/moebench run --system smoe --setting S3
	$(BIN)/moebench report --html report.html

# A test file runs in one process; eight would want more memory than most laptops have.
test: $(VENV)/installed native-or-not browser
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile

# Accelerate, DeepSpeed and llama.cpp, which run beside our systems: once, about 25 minutes of a
# core, most of it compilers'.
native: $(VENV)/native

# Where they cannot be built, for want of a compiler say, their tests are skipped and say so.
native-or-not:
	@$(MAKE) --no-print-directory native \
	  || echo "packages that run beside our systems are not all here: their tests will be skipped"

# OpenCompass, which needs other versions than ours, in an environment of its own, and its test.
opencompass: $(VENV)/installed $(OPENCOMPASS)/installed
	MOEBENCH_REQUIRE=1 $(BIN)/python -m pytest tests/harness/evaluate/test_opencompass.py

# A hundred points of each fault that `make test` tries ten of: kills, full disks, jumping clocks.
faults: $(VENV)/installed
	MOEBENCH_FAULTS=100 $(BIN)/python -m pytest -s tests/harness/sweep/test_kill.py \
	  tests/harness/sweep/test_faults.py

# New random inputs: 10,000 files, names, options and user systems, and new examples for the property
# tests, of which `make test` always tries the same ones (tests/conftest.py).
fuzz: $(VENV)/installed
	$(BIN)/python -m tests.fuzz_inputs.fuzz 10000
	MOEBENCH_EXAMPLES=random $(BIN)/python -m pytest -m hypothesis --numprocesses auto \
	  --maxprocesses 8 --dist loadfile

# How many of COUNT small defects of the product, drawn by SEED, do the tests catch?  The first time
# takes half an hour more, to record which test executes which line.
mutants: $(VENV)/installed
	$(BIN)/python -m tests.mutants.run --seed $(SEED) --count $(COUNT)

# Has accuracy moved?
check: $(VENV)/installed
	$(BIN)/moebench check

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy moebench

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.decode

# torch first and pinned, so that the CPU build is taken where a machine offers one.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/native: $(VENV)/installed | libaio
	CMAKE_BUILD_PARALLEL_LEVEL=$$(nproc) $(BIN)/python -m pip install --quiet \
	  --disable-pip-version-check -c constraints.txt -e ".[native]"
	$(BIN)/python -m moebench.systems.native.operators
	touch $@

$(OPENCOMPASS)/installed: constraints-opencompass.txt
	test -x $(OPENCOMPASS)/bin/python || $(PYTHON) -m venv $(OPENCOMPASS)
	$(OPENCOMPASS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints-opencompass.txt torch opencompass
	touch $@

# DeepSpeed reads from NVMe with libaio; without its headers that part is not compiled, and its test
# is skipped.
libaio:
	@test -f /usr/include/libaio.h \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get update -qq && apt-get install -y -qq libaio-dev >/dev/null; } \
	  || echo "no libaio: DeepSpeed's NVMe offload will not be tested"

# The report's browser test needs a Chromium; without one, and without the right to install one,
# that test is skipped and says so.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no Chromium: the report's browser test will be skipped"

clean:
	rm -rf $(VENV) $(OPENCOMPASS) build *.egg-info report.html
