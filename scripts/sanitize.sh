#!/bin/sh
# Run the tests of the simulated card under AddressSanitizer, once; part of `make soak`.
# A test that lets a process crash on purpose is left out: AddressSanitizer reports crashes in its own words.
# The card is built a second time for it, next to the ordinary build. Only errors in our own libraries count: leaks are
# not looked for, since Python and torch keep what they allocate until they end.
set -eu
cd "$(dirname "$0")/.."
# Inductor takes CXX for the name of a program, and the build does as well.
CXX="$PWD/.venv/bin/g++-address"
printf '#!/bin/sh\nexec g++ -fsanitize=address -fno-omit-frame-pointer "$@"\n' >"$CXX"
chmod +x "$CXX"
export CXX
.venv/bin/python -c 'from toprope.sim import build; build.ensure()'
preload="$(g++ -print-file-name=libasan.so):$(g++ -print-file-name=libstdc++.so)"
exec env LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 \
    .venv/bin/python -m pytest -q -p no:cacheprovider --timeout 3600 tests/sim/test_simulated.py -k "not what_goes_wrong" "$@"
