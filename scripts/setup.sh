#!/bin/sh
# Makes .venv with everything that toprope's demo, tests and checks need. Called by `make setup`.
# The packages are those of the extra `dev` in pyproject.toml, in the versions of constraints.txt; what it says of a machine
# that lacks something is held by tests/project/test_project.py.
#   PYTHON  the interpreter to build on         (python3)
#   TORCH   what pip is asked for to get torch  (torch==2.13.0)
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
torch=${TORCH:-torch==2.13.0}

stop() {
    echo "setup: $1" >&2
    echo "  do  $2" >&2
    exit 3
}

# Everything that can be missing is asked for first, so that nothing is left half done.
command -v "$python" >/dev/null 2>&1 ||
    stop "there is no $python." "install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3.12"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    stop "$python is $("$python" --version 2>&1), toprope needs 3.11 or newer." \
        "install a newer one, or name it: make setup PYTHON=/path/to/python3.12"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    stop "$python has no venv module." "install it (Debian, Ubuntu: apt install python3-venv)"
command -v g++ >/dev/null 2>&1 ||
    stop "there is no g++, which compiles the simulated card on its first use." \
        "install it (Debian, Ubuntu: apt install g++; Fedora, openEuler: dnf install gcc-c++)"

[ -d .venv ] || echo "setup: making .venv and filling it; this takes a few minutes, once"
"$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

# torch first and alone: asked for together with the rest, pip may choose another build of it (CUDA instead of CPU).
# $torch is split into words on purpose, so that it may carry pip's own options.
echo "setup: 1/3, $torch"
set -f
# shellcheck disable=SC2086
pip install --quiet --no-compile $torch
set +f

echo "setup: 2/3, what toprope, its tests and its checks need"
# From here on torch stays as it is, also where TORCH named another version than constraints.txt does.
grep -v '^torch==' constraints.txt >.venv/constraints.txt
.venv/bin/python -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >>.venv/constraints.txt
pip install --quiet --no-compile --constraint .venv/constraints.txt --editable '.[dev]'

echo "setup: 3/3, compiling torch's Python"
# Compiled at its import as everything else, torch alone would take long; all packages would take minutes.
.venv/bin/python -m compileall -q -j 0 "$(.venv/bin/python -c 'import torch; print(*torch.__path__)')" >/dev/null || true

touch .venv/.ready
echo "setup: .venv is ready"
