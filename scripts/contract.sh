#!/bin/sh
# Run the named parts of the contract, a set of checks in the folder next to this checkout. Called by `make contract`.
# Without names the contract's own `run` would run every part; here nothing is run then.
# Tests: tests/project/test_project.py.
set -eu
cd "$(dirname "$0")/.."
run=../shared/contract/run
if [ $# -eq 0 ]; then
    echo "contract: skipped, CONTRACT_PARTS in the Makefile names no part yet"
elif [ ! -f "$run" ]; then
    echo "contract: skipped, $run is not here (it is not part of a public clone)"
else
    .venv/bin/python "$run" "$@"
fi
