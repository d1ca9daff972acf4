# The commands people type; `make` lists them. Those that need .venv set it up first.

# The first Python that is new enough, unless you name one: make lab PYTHON=/path/to/python3.12
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -E -c '$(NEW_ENOUGH)' 2>/dev/null && break; python=python3; done; echo $$python)
# Tools run as modules, because their scripts hold the path of .venv, which may grow too long or change.
# nbgrader calls alembic, and kernels call pip, by their bare names.
RUN = PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python -m
# Otherwise each kernel warns that other users of this machine could read its messages.
ENCRYPTED = --KernelManager.transport_encryption=auto

# Programs that tests need and pip cannot install, as command:Debian-package.
PROGRAMS = chromium:chromium bwrap:bubblewrap pg_ctlcluster:postgresql

# Linux without an NVIDIA GPU takes PyTorch's CPU build from PyTorch's own index: the usual build brings gigabytes of
# CUDA libraries. TORCH=cuda takes the usual build in any case, TORCH=cpu the small one.
TORCH ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# The alarm also ends the look-up of a host name, which has no time limit itself.
ANSWERS = import signal, sys; from urllib.request import Request, urlopen; \
	signal.alarm(5); urlopen(Request(sys.argv[1], headers={"User-Agent": "pip"}))

# Variables through which an active environment or a user's settings would leak into ours.
unexport PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_PREFIX PIP_TARGET PIP_USER JUPYTER_PATH
export JUPYTER_PREFER_ENV_PATH = 1

.PHONY: help lab test test-all data lint format release bundle lessons demo frozen site rooms bench programs lock clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s%s\n", $$1, $$2 }' Makefile

lab: .venv/ready data  ## set up and open the course in JupyterLab (LAB_ARGS="--port 9999")
	@$(RUN) jupyterlab --no-browser $(if $(filter 0,$(shell id -u)),--allow-root) \
		--LabApp.default_url=/lab/tree/notebooks/01_self_attention.ipynb \
		--log-level=ERROR --LabApp.log_level=ERROR $(ENCRYPTED) $(LAB_ARGS)

# One process more than cores, because tests sometimes wait; one thread each, because threads that spin while they
# wait cost more than they save. Files run in order: sorted by number of tests, long files with few tests would come
# last, and one process would wait for another.
CORES = $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
TESTS = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(RUN) pytest -n $$(($(CORES) + 1)) --maxprocesses 9 \
	--dist loadfile --no-loadscope-reorder --durations=20
test: .venv/ready programs data  ## set up and run the tests (PYTEST_ARGS="-k attention")
	@$(TESTS) $(PYTEST_ARGS)

test-all: test  ## also run the thorough ones, which repeat others: all wrong answers, more kills, more examples
	@$(TESTS) -m thorough --dist worksteal $(PYTEST_ARGS)

# A lab needs only the text of the lessons. A corpus that can't be fetched is named, and the target goes on.
FETCH = tests/needed_data.py
lab: FETCH = -P transformer_lm/texts/downloads.py
data: .venv/ready  ## fetch the texts that lessons and tests read, unless they are there
	@.venv/bin/python $(FETCH) || true

lint: .venv/ready  ## find mistakes and unformatted code
	@$(RUN) ruff check
	@$(RUN) ruff format --check
	@$(RUN) mypy

format: .venv/ready  ## format the code and fix what lint can fix
	@$(RUN) ruff check --fix
	@$(RUN) ruff format

release: .venv/ready  ## write release/ from source/
	@$(RUN) grading totals
	@set -e; for assignment in source/*/; do \
		$(RUN) nbgrader generate_assignment "$$(basename "$$assignment")" --create --force; done
	@$(RUN) grading outline

THROUGH = 06_encoder_decoder
bundle: .venv/ready  ## write the zip for students (THROUGH=02_multi_head_attention)
	@$(RUN) grading bundle --through $(THROUGH)

lessons: .venv/ready  ## run the lessons and save their new outputs
	@$(RUN) nbconvert --to notebook --execute --inplace --ExecutePreprocessor.kernel_name=python3 \
		--ExecutePreprocessor.record_timing=False $(ENCRYPTED) notebooks/*.ipynb
	@.venv/bin/python docs/readme_figure.py

# A course with a sample class, in a separate folder that is written again each time.
demo: .venv/ready programs  ## set up, release, grade a sample class in demo/ and print its grades
	@rm -rf demo && mkdir demo && cp -r source nbgrader_config.py demo
	@set -e; cd demo; export PATH="$(CURDIR)/.venv/bin:$$PATH" PYTHONPATH="$(CURDIR)"; \
		python -m nbgrader generate_assignment 01_self_attention --create --log-level=ERROR; \
		python -c 'import pathlib, grading.authoring.demo; grading.authoring.demo.write_class(pathlib.Path.cwd())'; \
		python -m grading run 01_self_attention --reduced-isolation; \
		python -m nbgrader generate_feedback 01_self_attention --log-level=ERROR
	@echo "Each student's feedback: demo/feedback/<student>/01_self_attention/01_self_attention.html"

frozen: .venv/ready  ## write the frozen values that students check against
	@$(RUN) grading freeze

site: .venv/ready  ## write the course site to site/, from lessons, assignments, guides and docstrings
	@.venv/bin/python docs/build_site.py site
	@echo "The front page: site/index.html"

rooms: .venv/ready  ## write docs/rooms.md, a list of all modules, from their docstrings
	@.venv/bin/python docs/rooms.py

bench: .venv/ready  ## measure one thing against another and print ratios
	@set -e; for script in bench/*.py; do echo "$$script"; PYTHONPATH=. .venv/bin/python "$$script"; done

programs:  ## install the Debian packages that tests need (as root; otherwise name them)
	@for program in $(PROGRAMS); do \
		command -v "$${program%:*}" >/dev/null || set -- "$$@" "$${program#*:}"; done; \
	[ $$# -gt 0 ] || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing $$*"; export DEBIAN_FRONTEND=noninteractive; \
		apt-get -qq update && apt-get -qq install --no-install-recommends "$$@" >/dev/null && exit 0; fi; \
	echo "Not installed: $$*. Tests that need it will skip. On Debian: sudo apt-get install $$*"

# For the oldest Python that we support, because newer ones can use its pins, but not the other way round.
# torch keeps its version, and installs its own CUDA packages where it needs them.
RANGES = import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*project["dependencies"], *sum(project["optional-dependencies"].values(), []), sep="\n")
PINS = import json, sys; packages = [package["metadata"] for package in json.load(sys.stdin)["install"]]; \
	[print("%(name)s==%(version)s" % package) for package in sorted(packages, key=lambda one: one["name"].lower())]
lock:  ## write requirements.lock again, from the ranges in pyproject.toml
	@set -e; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	python3.11 -m venv "$$scratch"; python=$$scratch/bin/python; \
	"$$python" -c '$(RANGES)' > "$$scratch/ranges"; grep '^torch==' requirements.lock > "$$scratch/torch"; \
	"$$python" -m pip install -qq --dry-run --report "$$scratch/report" --target "$$scratch/target" \
		--python-version 3.11.0 --only-binary :all: -r "$$scratch/ranges" -c "$$scratch/torch"; \
	"$$python" -c '$(PINS)' < "$$scratch/report" > "$$scratch/pins"; \
	sed -E -e '/^(pip|setuptools|wheel|triton|nvidia-.*|cuda-.*)==/d' -e 's/\+.*//' "$$scratch/pins" > requirements.lock

clean:  ## delete .venv and what the tools wrote
	rm -rf .venv build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# The set-up: first the pins, then the course itself. A stamp is written last, so a set-up that was cut short is repeated.
# .venv/pins says where the checkout was: after it is moved or copied, .venv still points to the old folder.
# .venv/torch says which build of PyTorch is installed: if you ask for the other one, .venv is set up again.
ifneq ($(shell [ -x .venv/bin/python ] && cat .venv/pins 2>/dev/null),$(shell pwd -P))
.PHONY: .venv/pins
else ifneq ($(TORCH),$(if $(TORCH),$(shell cat .venv/torch 2>/dev/null)))
.PHONY: .venv/pins
endif

.venv/pins: requirements.lock
	@"$(PYTHON)" -E -c '$(NEW_ENOUGH)' 2>/dev/null || { echo >&2 "Python must be 3.11 or newer, got" \
		"$$("$(PYTHON)" --version 2>&1). Install one, or name one: make lab PYTHON=/path/to/python3.12"; exit 1; }
	@"$(PYTHON)" -E -c 'import ensurepip, venv' 2>/dev/null || { echo >&2 "Python must come with venv, got" \
		"$(PYTHON) without. On Debian: sudo apt-get install python3-venv"; exit 1; }
	@case "$(TORCH)" in ""|cpu|cuda) ;; *) echo >&2 "TORCH must be cpu or cuda, got $(TORCH)."; exit 1;; esac
	@echo "Setting up .venv: this takes some minutes, once."
	@rm -f $@
	@"$(PYTHON)" -E -m venv --clear .venv
	@# torch alone first, without its dependencies: the rest comes from the usual index, and finds torch installed.
	@# If you wait, you want to see progress; in CI, it would only fill the log.
	@build="$(TORCH)"; cpu_build() { \
		$(RUN) pip install $(if $(CI),-qq) --no-deps --index-url "$(TORCH_INDEX)" "$$(grep '^torch==' requirements.lock)"; }; \
	if [ "$$build" = cpu ]; then cpu_build || exit; \
	elif [ -z "$$build" ] && [ "$$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1; then \
		if { .venv/bin/python -c '$(ANSWERS)' "$(TORCH_INDEX)/torch/"; } 2>/dev/null && cpu_build; then build=cpu; \
		else echo "PyTorch's CPU build is not available from $(TORCH_INDEX), so pip takes its usual build."; fi; \
	fi; \
	echo "$${build:-cuda}" > .venv/torch
	@$(RUN) pip install $(if $(CI),-qq) -r requirements.lock
	@# Otherwise JupyterLab asks for permission to fetch its news, and looks for updates.
	@$(RUN) jupyterlab.labextensions disable "@jupyterlab/apputils-extension:announcements" 2>/dev/null
	@pwd -P > $@

.venv/ready: .venv/pins pyproject.toml
	@$(RUN) pip install -qq --no-deps -e .
	@touch $@
