# `make check` and `make test` each set up .venv on their first run.
# For a CPU build of torch: make check TORCH_OPTIONS="--index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= $(shell for name in python3.11 python3; do $$name -c '' 2>/dev/null && echo $$name && break; done)
TORCH_OPTIONS ?=
TORCH := torch==2.13.0
TRITON_ASCEND := triton-ascend==3.2.0

BIN := .venv/bin
PIP := $(BIN)/python -m pip
READY := .venv/.touchstone-ready

SWA_STAGES := rms_norm embed qkv_proj_rope kv_write sparse_attention_swa output_proj swa_core

.PHONY: check test setup

check: setup
	$(BIN)/touchstone doctor
	$(BIN)/touchstone run $(SWA_STAGES) --model flash --context 8k

test: setup
	$(BIN)/python -m pytest -n 2

setup: $(READY)

# A torch built for CUDA brings upstream Triton, which owns the same folder as triton-ascend: it goes, and triton-ascend
# comes last, again, since removing the one removes files of the other.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install $(TORCH_OPTIONS) $(TORCH)
	$(PIP) install --editable ".[sim,dev]"
	if $(PIP) show --quiet triton 2>/dev/null; then \
		$(PIP) uninstall --yes triton && $(PIP) install --force-reinstall --no-deps $(TRITON_ASCEND); \
	fi
	touch $@
