#!/bin/sh
# The tests of the simulated card many times in a row, each round in one process: a crash shows, however rare it is.
# usage: scripts/repeat.sh ROUNDS [MODULE ...]     (no module: all of tests/simulated that need no cards of their own)
set -eu
cd "$(dirname "$0")/.."
rounds=$1
shift
[ $# -gt 0 ] || set -- $(grep -L -E '^(SIM|ENVIRONMENT) = ' tests/simulated/test_*.py)
round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    TOPROPE_INNER=1 TOPROPE_SIM=910B3x4,refuse=off .venv/bin/python -m pytest -q -p no:cacheprovider "$@" >/dev/null || {
        echo "repeat: round $round of $rounds ended with status $?"
        exit 1
    }
done
echo "repeat: $rounds rounds without a failure: $*"
