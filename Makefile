.DEFAULT_GOAL := help
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHON VENV
# Without its cache each of the hundreds of processes that tests start compiles every module that it imports.
unexport PYTHONDONTWRITEBYTECODE
DEV_STAMP := $(VENV)/.installed-dev
SITE_STAMP := $(VENV)/.installed-docs
RELEASE_STAMP := $(VENV)/.installed-release
CLIENT := tests/dap_server/testsupport
EXTENSION := vscode-extension
EDITOR_TESTS := tests/vscode
# A worker without tests takes half of the rest of another one.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

EDITOR := $(EDITOR_TESTS)/node_modules/.installed
VSIX := dist/nncdbg.vsix
VSIX_SOURCES = $(wildcard $(shell git ls-files -co --exclude-standard nncdbg $(EXTENSION) pyproject.toml 2>/dev/null))

.PHONY: adapter code-server cuda-check help demo demo-torch kernels setup test test-all nightly test-torch-versions conformance conformance-torch laws e2e e2e-editor editor bench-editor vsix release check lint types imports generated-check bench sizes docs site readme format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo:  ## open an example in the debugger; the first run installs nncdbg into .venv
	@./demo

demo-torch: $(BIN)/python  ## record a training step with a NaN, and open it; the first run installs PyTorch
	@$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[torch]'
	$(BIN)/nncdbg record examples/torch_training.py --step 4 -o build/step4
	$(BIN)/nncdbg build/step4

setup: $(DEV_STAMP) $(SITE_STAMP)  ## install what checks, tests and site need into .venv

# Compiled before tests that limit the time of a process; without a compiler, tests run without the libraries.
kernels: $(DEV_STAMP)  ## compile what exists in C++ too for PyTorch, unless it is in the user's cache folder
	-@$(BIN)/python -m nncdbg.torch.compile_libraries

test: $(DEV_STAMP) kernels  ## run the tests, with a rotating quarter of the nightly ones
	$(PYTEST)

test-all: $(DEV_STAMP) kernels $(CLIENT)/node_modules  ## run test and e2e as one run
	$(PYTEST) -m "not laws and not fuzz and not conformance_torch and not editor"

nightly: $(DEV_STAMP) kernels  ## run all nightly tests: every case of every catalogue, all examples of laws
	NNCDBG_QUARTER=all $(PYTEST) -m "nightly or hypothesis or laws or fuzz or conformance_torch"

conformance: $(DEV_STAMP)  ## run every ONNX backend test case: free, stepped, through text and through ONNX
	NNCDBG_QUARTER=all $(PYTEST) tests/conformance

conformance-torch: $(DEV_STAMP) kernels  ## record and run torch's samples of operators, modules and optimizers
	$(PYTEST) -m conformance_torch tests/torch/conformance

test-torch-versions: $(BIN)/python  ## test other versions of PyTorch, each in build/torch-VERSION (5 GB each)
	$(BIN)/python tools/try_torch_versions.py $(TORCH_VERSIONS)

laws: $(DEV_STAMP)  ## query every user interface about every planted fault, and why at every stop
	$(PYTEST) -m laws

cuda-check: $(DEV_STAMP)  ## compile the CUDA kernels with NVRTC, which needs no device (200 MB)
	$(BIN)/python -m pip install --quiet --target build/nvrtc nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12
	PYTHONPATH=build/nvrtc $(BIN)/python -m pytest -rs tests/engine/backends/test_cuda_sources.py

adapter: $(DEV_STAMP)  ## run all tests of the debug adapter, with real processes
	$(PYTEST) tests/dap_server

e2e: $(DEV_STAMP) $(CLIENT)/node_modules  ## test the DAP server with the client library of VS Code
	$(BIN)/python -m pytest -m e2e -rs

e2e-editor: $(DEV_STAMP) editor  ## test the extension in a real VS Code (code-server, Chromium)
	$(BIN)/python -m pytest -n auto --maxprocesses=4 --maxschedchunk=1 -m editor -rs $(EDITOR_TESTS)

bench-editor: $(DEV_STAMP) editor  ## measure the extension in a real VS Code
	$(BIN)/python -m tests.vscode.figures

code-server: $(EDITOR)

editor: $(VSIX) $(EDITOR)  ## build the extension, and install code-server for its tests

vsix: $(VSIX)  ## build dist/nncdbg.vsix, the VS Code extension with its wheel

$(VSIX): $(VSIX_SOURCES) | $(BIN)/python $(EXTENSION)/node_modules
	@if command -v npm >/dev/null; then mkdir -p dist $(EXTENSION)/out && rm -f $(EXTENSION)/out/*.whl \
	&& $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(EXTENSION)/out . \
	&& (cd $(EXTENSION) && npm run --silent check && npm test --silent && npm run --silent package) \
	&& $(BIN)/python tools/embed_pictures.py dist/nncdbg.vsix && $(BIN)/python tools/check_extension.py dist/nncdbg.vsix; \
	else echo "npm not found: the extension is not built"; fi

release: $(RELEASE_STAMP)  ## build wheel, sdist and VS Code extension in dist/, and check their metadata
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(MAKE) vsix
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/python tools/check_release.py dist

check: types lint imports generated-check  ## check lint, format, language, types, import direction and generated files

lint: $(DEV_STAMP)  ## check lint, format and language
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_language.py

types: $(DEV_STAMP)  ## check the types
	$(BIN)/mypy

imports: $(DEV_STAMP)  ## check the import direction
	$(BIN)/lint-imports

readme: $(DEV_STAMP)  ## run all commands of the README in a fresh clone, installation included
	$(BIN)/python tools/try_readme.py

bench: $(DEV_STAMP)  ## measure against other tools, one JSON line per figure
	$(BIN)/python benchmarks/run.py

docs: $(DEV_STAMP)  ## write the generated files under docs/
	$(BIN)/python tools/generate_pages.py

site: $(SITE_STAMP)  ## build the documentation site in build/site
	$(BIN)/python -m sphinx -b html -W --keep-going -q -d build/doctrees docs build/site
	@echo "open build/site/index.html"

generated-check: $(DEV_STAMP)  ## fail if a generated file under docs/ is stale
	$(BIN)/python tools/generate_pages.py --check

format: $(DEV_STAMP)  ## format the code and apply the fixes of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sizes: $(DEV_STAMP)  ## print lines per package, the longest files and functions
	$(BIN)/python benchmarks/sizes.py

clean:  ## remove .venv and all caches
	rm -rf $(VENV) $(VENV).lock $(CLIENT)/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(CLIENT)/node_modules: $(CLIENT)/package-lock.json
	@if command -v npm >/dev/null; then cd $(CLIENT) && npm ci && touch node_modules; \
	else echo "npm not found: the tests that need it are skipped"; fi

$(EXTENSION)/node_modules: $(EXTENSION)/package-lock.json
	@if command -v npm >/dev/null; then cd $(EXTENSION) && npm ci && touch node_modules; fi

$(EDITOR): $(EDITOR_TESTS)/package-lock.json $(EDITOR_TESTS)/install.sh
	@if command -v npm >/dev/null && command -v rg >/dev/null; then $(EDITOR_TESTS)/install.sh; \
	else echo "npm or ripgrep not found: the tests that need them are skipped"; fi

$(BIN)/python:
	@tools/install.sh --venv $(VENV)

$(DEV_STAMP): pyproject.toml
	@tools/install.sh --venv $(VENV) --extra dev
	@touch $@

$(RELEASE_STAMP): pyproject.toml
	@tools/install.sh --venv $(VENV) --extra release
	@touch $@

$(SITE_STAMP): pyproject.toml
	@tools/install.sh --venv $(VENV) --extra docs
	@touch $@
