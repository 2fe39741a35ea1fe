# For the script tests of this folder: running eep on ranks, counting what passed.
#   EEP_SRC, EEP_BUILD  source and build tree, absolute
# shellcheck shell=bash

EEP_SRC=${EEP_SRC:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
EEP_BUILD=${EEP_BUILD:-$EEP_SRC/build}
export EEP_SRC EEP_BUILD
data=$EEP_SRC/tests/data
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

# Ranks that this build can run.
if grep -q '^#define EEP_HAVE_MPI 1' "$EEP_BUILD/config.h"; then
    max_ranks=64
else
    max_ranks=1
fi

# on_ranks N PROGRAM ...: run a program of the build on N ranks; a hang is a failure. Each run has
# its own TMPDIR: what a launcher that was killed left behind must not meet the next one.
on_ranks() {
    local ranks=$1 tmp rc
    shift
    if [ "$max_ranks" = 1 ]; then
        timeout 300 "$EEP_BUILD/$1" "${@:2}"
        return
    fi
    tmp=$(mktemp -d "$work/tmp.XXXXXX")
    TMPDIR=$tmp timeout 300 "$EEP_SRC/scripts/mpi-run" -n "$ranks" "$@"
    rc=$?
    rm -rf "$tmp"
    return "$rc"
}

# check NAME COMMAND ...: count one test; its output is shown when it fails.
check() {
    local name=$1
    shift
    if "$@" >"$work/check.log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
        sed 's/^/    /' "$work/check.log" | tail -n 20
    fi
}

skip() {
    skipped=$((skipped + 1))
    echo "skipped: $1"
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
