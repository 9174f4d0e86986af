# The two commands of the README. Each makes .venv on first use and leaves it alone afterwards.
PYTHON ?= python3
BIN := .venv/bin

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto
unexport PYTHONDONTWRITEBYTECODE  # the processes of the tests share what they compile

.PHONY: test test-all static-checks quick-tests all-tests demo docs lint benchmark clean

test: .venv/.installed-test .venv/.browser
	$(MAKE) --no-print-directory --jobs 2 static-checks quick-tests

# With the tests marked "long", and five times as many random examples.
test-all: .venv/.installed-test .venv/.browser
	$(MAKE) --no-print-directory --jobs 2 static-checks all-tests

static-checks:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

quick-tests:
	$(PYTEST) -m "not long"

all-tests:
	CALPROMPT_TEST_PROFILE=thorough $(PYTEST)

demo: .venv/.installed
	$(BIN)/calprompt demo --out demo $(addprefix --check ,$(wildcard docs/demo.json))

docs: .venv/.installed-docs
	$(BIN)/zensical build --strict --clean

benchmark: .venv/.installed
	$(BIN)/python -m benchmarks.ratios --full

lint: .venv/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/.installed-test: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@ .venv/.installed

# Pages are tested in Chromium: one that is there, or Debian's; without it these tests say that they did not run.
.venv/.browser: | .venv/.installed-test
	command -v "$${CALPROMPT_CHROMIUM:-chromium}" >/dev/null || command -v google-chrome >/dev/null \
	|| { command -v apt-get >/dev/null && test "$$(id -u)" = 0 && apt-get -qq update && apt-get -qq install -y chromium >/dev/null; } \
	|| echo "There is no Chromium, and it could not be installed: the tests in tests/browser will not run."
	touch $@

.venv/.installed-docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@ .venv/.installed

clean:
	rm -rf .venv .cache build/lib build/bdist* build/site dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
