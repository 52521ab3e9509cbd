#!/bin/sh
# Run the tests of the simulated card many times in a row, to find rare crashes; part of `make soak`.
# A round is one process for all modules that can share one, and one each for those that need a card nobody has used
# (they count its memory, or fork before the backward pass has threads).
# Tests: none runs it; its modules are those of tests/sim/simulated.
# usage: scripts/repeat.sh ROUNDS [MODULE ...]     (no module: all of tests/*/simulated that need no cards of their own)
set -eu
cd "$(dirname "$0")/.."
rounds=$1
shift
[ $# -gt 0 ] || set -- $(grep -L -E '^(SIM|ENVIRONMENT) = ' tests/*/simulated/test_*.py)
alone=$(grep -l -E '^from card_memory import|os\.fork\(' "$@" || true)
together=$(printf '%s\n' "$@" | grep -v -x -F "$alone" || true)

run() {
    TOPROPE_INNER=1 TOPROPE_SIM=910B3x4,refuse=off .venv/bin/python -m pytest -q -p no:cacheprovider "$@" >"$log" 2>&1 || {
        status=$?
        cat "$log"
        echo "repeat: round $round of $rounds ended with status $status: $*"
        exit 1
    }
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    [ -z "$together" ] || run $together
    for module in $alone; do
        run "$module"
    done
    echo "repeat: round $round of $rounds passed at $(date +%T)"
done
echo "repeat: $rounds rounds without a failure: $*"
