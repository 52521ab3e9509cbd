#!/bin/sh
# Runs every script in benchmarks/, one after the other. Called by `make bench`.
set -eu
cd "$(dirname "$0")/.."
ran=0
for script in benchmarks/*.py; do
    [ -f "$script" ] || continue
    echo "bench: $script"
    .venv/bin/python "$script"
    ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || echo "bench: benchmarks/ has no scripts yet, so nothing was measured"
