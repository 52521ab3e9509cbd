#!/bin/sh
# Runs the named parts of the contract that stands beside this checkout. Called by `make contract`.
# Named nothing, the contract's own `run` would run every part, so nothing named is nothing run.
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
