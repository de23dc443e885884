# Every target does its own set-up: `make test` works on a fresh clone that has Python 3.10+, g++
# and make. Nothing that did not change is installed or compiled again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
CPP_SOURCES := $(shell find csrc -name '*.cc' -o -name '*.h')
NATIVE_SOURCES := CMakeLists.txt $(CPP_SOURCES) $(shell find csrc proto -name '*.proto' -o -name CMakeLists.txt)

.PHONY: setup native wheel demo test system-packages test-fast test-core test-asan test-tsan fuzz fuzz-asan lint format bench bench-table bench-checkpoint bench-train bench-collision bench-dense bench-prefetch docs site bench-small bench-keras bench-criteo bench-distributed bench-sync bench-calls bench-rows bench-input bench-online bench-serving fuzz-serving chaos clean

setup: $(VENV)/.native

# The environment: the build's and the developers' requirements, as pinned in requirements.txt.
$(VENV)/.dependencies: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Monolith needs Python 3.10 or newer, but $(PYTHON) is " + sys.version.split()[0] + "; say which to use: make PYTHON=/path/to/python3")'
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@# The package's own name until it got one on the index; two installations would share their files.
	$(BIN)/python -m pip uninstall --quiet --quiet --disable-pip-version-check --yes monolith
	touch $@

# The package itself, editable: compiles the op library and generates the protobuf modules.
# The stamp takes the time of the start, so that a file saved during a long build is built next time.
$(VENV)/.native: $(VENV)/.dependencies pyproject.toml $(NATIVE_SOURCES)
	mkdir -p build && touch build/.started
	flock build/.lock $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-build-isolation --no-deps -e .
	touch -r build/.started $@

native: $(VENV)/.native

# An sdist and a wheel that needs no compiler, in dist/. The wheel is built from the sdist; auditwheel
# checks what it takes from the system, and names the oldest glibc that has all of it. TensorFlow's
# library is there when ours is loaded.
wheel: $(VENV)/.dependencies
	rm -rf build/wheel dist
	$(BIN)/python -m build --no-isolation --outdir build/wheel .
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/auditwheel repair --exclude 'libtensorflow*' --wheel-dir dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist

# Trains a ranking model from its first example to recommendations; Ctrl-C saves, the next call goes on.
demo: setup
	$(BIN)/monolith demo --model-dir build/demo

# Ends with pytest's summary, or with what was left out and the command that brings it.
test: setup test-core
	@$(BIN)/python -m pytest -n $(WORKERS); code=$$?; tools/system_packages.sh left-out; exit $$code

test-fast: setup
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

# googletest, ZooKeeper: root gets them by apt, everybody else is told at the end of `make test`.
system-packages:
	@tools/system_packages.sh

# The C++ core alone. Needs googletest, and says so where it is missing.
core-build = cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
  -DPython3_EXECUTABLE=$(abspath $(BIN))/python -DMONOLITH_BUILD_OPS=OFF -DMONOLITH_BUILD_TESTS=ON $(2) >/dev/null \
  && $(BIN)/cmake --build build/$(1)
HAS_GTEST = $(wildcard /usr/include/gtest/gtest.h /usr/local/include/gtest/gtest.h)

core-test = $(if $(HAS_GTEST),\
  $(BIN)/$(call core-build,$(1),$(2)) && cd build/$(1) && \
    $(abspath $(BIN))/ctest --no-tests=error --output-on-failure -j $(WORKERS),\
  @echo "Left out: the tests of csrc/core need googletest (Debian: apt-get install libgtest-dev)")

test-core: setup system-packages
	$(call core-test,core,)

# The same tests under a sanitizer; CI runs both. The first compiles each file alone: it must include
# what it uses.
test-asan: setup system-packages
	$(call core-test,asan,-DMONOLITH_SANITIZER=address -DMONOLITH_TOGETHER=OFF)

test-tsan: setup system-packages
	$(call core-test,tsan,-DMONOLITH_SANITIZER=thread)

# All ops with odd input, in processes that may die; a finding says how to repeat it.
FUZZ_CALLS ?= 100000
FUZZ_SEED ?= 1
fuzz: setup
	$(BIN)/python tests/native/fuzz.py --calls $(FUZZ_CALLS) --seed $(FUZZ_SEED) --jobs $(WORKERS)

# Odd requests to a prediction server, over gRPC and REST.
fuzz-serving: setup
	$(BIN)/python tests/serving/server/fuzz.py --requests $(FUZZ_CALLS) --seed $(FUZZ_SEED)

# Ops on an op library that AddressSanitizer watches. TensorFlow itself is not compiled for it:
# the sanitizer must be loaded first, and what crosses the border (memory that one side allocates
# and the other frees, containers that only our side annotates) is no finding.
fuzz-asan: setup
	$(BIN)/cmake -S . -B build/asan-ops -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython3_EXECUTABLE=$(abspath $(BIN))/python -DMONOLITH_SANITIZER=address -DMONOLITH_TOGETHER=OFF >/dev/null
	$(BIN)/cmake --build build/asan-ops --target monolith_ops
	LD_PRELOAD=$$(g++ -print-file-name=libasan.so):$$(g++ -print-file-name=libstdc++.so) \
	ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0:detect_container_overflow=0:allocator_may_return_null=1:max_allocation_size_mb=3000:handle_abort=1 \
	  $(BIN)/python tests/native/fuzz.py --calls $(FUZZ_CALLS) --seed $(FUZZ_SEED) --jobs $(WORKERS) \
	  --seconds 60 --library build/asan-ops/csrc/ops/libmonolith_ops.so

# Kills, freezes and cuts off members of a real job for 20 minutes, and sees that no update is lost.
CHAOS_MINUTES ?= 20
CHAOS_SEED ?= 1
chaos: setup
	$(BIN)/python tests/chaos/run.py --minutes $(CHAOS_MINUTES) --seed $(CHAOS_SEED) --write

lint: $(VENV)/.dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP_SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dependencies
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_SOURCES)

bench: setup
	$(BIN)/$(call core-build,core,) --target core_benchmarks
	for benchmark in build/core/csrc/core/*_benchmark; do $$benchmark; done

# The collisionless table against its peers, each in an environment of its own below build/bench.
bench-table: setup
	$(BIN)/python -m benchmarks.table.run --write

# Calls of 1, 16 and 64 ids against DenseHashTable.
bench-small: setup
	$(BIN)/python -m benchmarks.small_calls --write

# Saving and restoring the table against the disk and TFRA; the same environments.
bench-checkpoint: setup
	$(BIN)/python -m benchmarks.checkpoint.run --write

# Training steps of the demo's model against Keras and TensorFlow Recommenders Addons.
bench-train: setup
	$(BIN)/python -m benchmarks.train.run --write

# model.fit with our Keras layer against those of Keras and TensorFlow Recommenders Addons.
bench-keras: setup
	$(BIN)/python -m benchmarks.keras.run --write

# A Criteo-shaped training step against PyTorch, Keras and TensorFlow Recommenders Addons.
bench-criteo: setup
	$(BIN)/python -m benchmarks.criteo.run --write

# The prediction server against a call of the model in the same process.
bench-serving: setup
	$(BIN)/python -m benchmarks.serving.run --write

# Training over parameter servers against one process and TensorFlow's own strategy.
bench-distributed: setup
	$(BIN)/python -m benchmarks.distributed.run --write

# Synchronous training over ranks against Keras under TensorFlow's own strategy.
bench-sync: setup
	$(BIN)/python -m benchmarks.sync.run --write

# What a call of ml.Table costs from Python, against tf.gather on a tf.Variable.
bench-calls: setup
	$(BIN)/python -m benchmarks.table_calls --write

# What rows in fewer bits cost: AUC and bytes.
bench-rows: setup
	$(BIN)/python -m benchmarks.compact_rows --write

# What it costs when ids share rows; writes a plot to build/bench/collision.png.
bench-collision: setup
	$(BIN)/python -m benchmarks.collision

# What a prefetch queue hides of the input's time.
bench-prefetch: setup
	$(BIN)/python -m benchmarks.prefetch

# Example and ExampleBatch into features, against tf.io.parse_example.
bench-input: setup
	$(BIN)/python -m benchmarks.input --write

# `monolith demo online` for three seeds: what serving the newest rows is worth, and the lag.
bench-online: setup
	$(BIN)/python -m benchmarks.online --write

# The dense optimizers and clipping against the same formulas in TensorFlow ops, in one run.
bench-dense: setup
	$(BIN)/python -m benchmarks.dense

# The examples in the documentation are run, its links checked.
docs: setup
	$(BIN)/python -m pytest tests/docs_test.py

# The documentation as a site, build/site/index.html. A broken link or docstring fails.
site: setup
	$(BIN)/python -m benchmarks.speed_plot docs/images/speed.svg
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
