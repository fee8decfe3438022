# Two commands do everything on a fresh machine: `make run` and `make test`.
# Needed: git, make, Python 3.11 or newer with venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OPENCOMPASS := .venv-opencompass
DOCS := .venv-docs
LOCK := build/lock
# Installs into an environment: $(call install,its folder,what is said,packages and options).  What pip
# says goes to a file, which is named if it fails.
install = echo "$(2)" && { $(1)/bin/python -m pip install --disable-pip-version-check $(3) \
  >> $(1)/install.log 2>&1 || { tail -n 20 $(1)/install.log; echo "failed; see $(1)/install.log"; exit 1; }; }
# Options of pip for a lock: each file must have a listed hash, and nothing else is fetched, tools that
# build a package included.
hashed := --require-hashes --no-deps --no-build-isolation
# Two threads on two busy cores are slower than one: OpenMP spins.
export OMP_NUM_THREADS ?= 1
# Tests start hundreds of processes, each of which would compile 400 modules without their bytecode.
unexport PYTHONDONTWRITEBYTECODE

# Defects that `make mutants` draws, and from what seed.
SEED ?= 1
COUNT ?= 150

.PHONY: run test test-slow wheels test-native test-trackers fuzz faults mutants differential fit ablation \
  advice native opencompass check lint format bench card docs reproduction field lock browser compiler libaio clean

run: $(VENV)/installed
	$(BIN)/moebench run --system smoe --setting S3
	$(BIN)/moebench report --html report.html

# A test file runs in one process; eight would want more memory than most laptops have.  Tests of
# packages that must be compiled are skipped where these are not installed: `make test-native`.
pytest = $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile
test: $(VENV)/installed browser compiler
	$(pytest) -m "not slow"

# The tests that take half a second or more: kills, full disks, clusters, whole searches, every option.
test-slow: $(VENV)/installed browser compiler
	$(pytest) -m slow

# The two wheels of a release, in dist/, and their test: moebench itself, and the scale models' weights.
wheels: $(VENV)/installed
	rm -rf dist build/lib build/bdist.* packages/weights/build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist . ./packages/weights
	MOEBENCH_WHEELS=dist MOEBENCH_REQUIRE=1 $(BIN)/python -m pytest -n0 tests/moebench/test_wheel.py
	@ls -l dist

# Accelerate, DeepSpeed and llama.cpp, which run beside our systems: once, about 25 minutes of a
# core, most of it compilers'.
native: $(VENV)/native

# The tests of these packages, none of which may be skipped.
test-native: native
	MOEBENCH_REQUIRE=1 $(pytest) tests/harness/native tests/systems/native

# The experiment trackers that `moebench report` exports to, of 192 MB in 38 packages, and their tests,
# none of which may be skipped.
test-trackers: $(VENV)/trackers
	MOEBENCH_REQUIRE=1 $(BIN)/python -m pytest tests/reports/formats/test_trackers.py

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
	MOEBENCH_EXAMPLES=random $(pytest) -m hypothesis

# How many of COUNT small defects of the product, drawn by SEED, do the tests catch?  The first time
# takes half an hour more, to record which test executes which line.
mutants: $(VENV)/installed
	$(BIN)/python -m tests.mutants.run --seed $(SEED) --count $(COUNT)

# Does a second simulator, written from the documentation alone, find the engine's times?  And do the
# documents of all systems obey laws of conservation, scaling and monotonicity?  About 25 minutes.
differential: $(VENV)/installed
	$(BIN)/python -m tests.reference.compare

# Have accuracy, latencies, or the errors on published measurements moved?
check: $(VENV)/installed
	$(BIN)/moebench check
	$(BIN)/moebench validate --published --check > /dev/null

# The constants of predictions of published rows, fitted again; and what each component is worth.
fit: $(VENV)/installed
	$(BIN)/python -m moebench.harness.published.fit

ablation: $(VENV)/installed
	$(BIN)/python -m moebench.harness.published.ablation

# The grid of the advice page: twelve models on 17 machines, about 50 minutes of a core.  Parts are
# kept in build/advice, so a build that was stopped goes on.
advice: $(VENV)/installed
	$(BIN)/python -m moebench.harness.advise.grid_build

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy moebench

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.decode

# What only a GPU can show, in ten minutes, in build/card: docs/machines.md describes the files.
card: $(VENV)/installed
	@$(BIN)/python -m benchmarks.card build/card

# The documentation as web pages, in build/site.  A broken link or anchor makes it fail.
docs: $(DOCS)/installed
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "wrote build/site/index.html; to search it: python3 -m http.server --directory build/site"

# The pages of the papers' claims, from results/claims/: docs/reproduction.md and below it.
reproduction: $(VENV)/installed
	@$(BIN)/python -m moebench.reports.reproduction

# The page of the field sweep, from results/field/: docs/field.md.
field: $(VENV)/installed
	@$(BIN)/python -m moebench.reports.field

# Writes the locks again, after pyproject.toml or constraints.txt has changed: the versions of
# constraints.txt, with the hashes of every file that the package index has of them.  torch is left
# out (docs/decisions.md), so the packages that its CPU build needs are named; so are the weights,
# which an editable install does not need.  libcachesim has no
# wheels for other processors and versions, and does not compile without glib: its test is skipped there.
lock: $(LOCK)/bin/uv
	@printf '%s\n' 'torch; python_version < "3"' 'moebench-weights; python_version < "3"' \
	  'libcachesim; platform_machine == "x86_64" and python_version < "3.14"' \
	  'numba; python_version < "3.15"' > $(LOCK)/overrides.txt
	printf '%s\n' networkx setuptools sympy \
	  | $(compile) --override $(LOCK)/overrides.txt --extra dev pyproject.toml - -o requirements.lock
	$(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*project["optional-dependencies"]["docs"], sep="\n")' | $(compile) - -o requirements-docs.lock

compile = $(LOCK)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-annotate --custom-compile-command "make lock" -c constraints.txt

$(LOCK)/bin/uv: constraints.txt
	@$(PYTHON) -m venv $(LOCK)
	@$(call install,$(LOCK),installing uv,-c constraints.txt uv)
	@touch $@

# setuptools first: it builds the packages that have no wheel.  torch after the packages that it
# shares with moebench, so that only itself and CUDA's packages come without a hash; no index is named,
# so that the CPU build is taken where a machine offers one.  At the end, pip finds what a lock lacks.
$(VENV)/installed: pyproject.toml dependencies.txt constraints.txt requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@sed -n '/^setuptools==/,/[^\]$$/p' requirements.lock > $(VENV)/setuptools.lock
	@$(call install,$(VENV),installing setuptools,$(hashed) -r $(VENV)/setuptools.lock)
	@$(call install,$(VENV),installing the packages of requirements.lock,$(hashed) -r requirements.lock)
	@$(call install,$(VENV),installing PyTorch,-c constraints.txt torch)
	@$(call install,$(VENV),installing moebench,--no-deps --no-build-isolation -e .)
	@$(BIN)/python -m pip check
	@touch $@

$(DOCS)/installed: requirements-docs.lock
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(call install,$(DOCS),installing MkDocs,$(hashed) -r requirements-docs.lock)
	@$(DOCS)/bin/python -m pip check
	@touch $@

$(VENV)/native: $(VENV)/installed | libaio
	@export CMAKE_BUILD_PARALLEL_LEVEL=$$(nproc); \
	  $(call install,$(VENV),compiling llama.cpp and DeepSpeed: about 25 minutes of a core,-c constraints.txt -e ".[native]")
	@$(BIN)/python -m moebench.systems.native.operators
	@touch $@

$(VENV)/trackers: $(VENV)/installed
	@$(call install,$(VENV),installing wandb and mlflow,-c constraints.txt -e ".[wandb]" -e ".[mlflow]")
	@touch $@

$(OPENCOMPASS)/installed: constraints-opencompass.txt
	@test -x $(OPENCOMPASS)/bin/python || $(PYTHON) -m venv $(OPENCOMPASS)
	@$(call install,$(OPENCOMPASS),installing OpenCompass: 2.2 GB,-c constraints-opencompass.txt torch opencompass)
	@touch $@

# DeepSpeed reads from NVMe with libaio; without its headers that part is not compiled, and its test
# is skipped.
libaio:
	@test -f /usr/include/libaio.h \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get update -qq && apt-get install -y -qq libaio-dev >/dev/null; } \
	  || echo "no libaio: DeepSpeed's NVMe offload will not be tested"

# Replays on simulated machines are compiled where there is a C++ compiler; without one, and without
# the right to install one, their tests are skipped and say so.
compiler:
	@command -v "$${CXX:-c++}" >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get update -qq && apt-get install -y -qq g++ >/dev/null; } \
	  || echo "no C++ compiler: the tests of compiled replays will be skipped"

# The report's browser test needs a Chromium; without one, and without the right to install one,
# that test is skipped and says so.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no Chromium: the report's browser test will be skipped"

clean:
	rm -rf $(VENV) $(OPENCOMPASS) $(DOCS) build dist *.egg-info packages/weights/build report.html
