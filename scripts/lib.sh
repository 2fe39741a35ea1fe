# Helpers that the scripts share; sourced, never run.
# shellcheck shell=bash

# shellcheck disable=SC2034 # for the scripts that source this
EEP_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say()
{
    printf '%s\n' "$*" >&2
}

die()
{
    say "${0##*/}: $*"
    exit 1
}

have()
{
    command -v "$1" >/dev/null 2>&1
}

# The absolute form of a path that need not exist yet.
absolute()
{
    case $1 in
        /*) printf '%s\n' "$1" ;;
        *) printf '%s\n' "$PWD/$1" ;;
    esac
}

# Run a command whose output matters only when it fails: keep it in a log, show its end then.
quietly()
{
    local log=$1 status=0
    shift
    mkdir -p "$(dirname "$log")"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ "$status" -ne 0 ]; then
        say "failed with status $status: $*"
        say "the end of its output (all of it: $log):"
        tail -n 30 "$log" >&2
    fi
    return "$status"
}

# Does this wrapper belong to an Open MPI with ULFM that programs can link?
mpicc_has_ulfm()
{
    local wrapper=$1 dir ok=1
    have "$wrapper" || return 1
    dir=$(mktemp -d)
    cat >"$dir/ulfm.c" <<'END'
#include <mpi.h>
#include <mpi-ext.h>

int main(void)
{
    MPI_Comm comm = MPI_COMM_NULL;
    int flag = 0;

    return MPIX_Comm_shrink(comm, &comm) + MPIX_Comm_agree(comm, &flag) + MPIX_Comm_revoke(comm);
}
END
    if "$wrapper" --showme:link >/dev/null 2>&1 &&
        "$wrapper" -o "$dir/ulfm" "$dir/ulfm.c" >/dev/null 2>&1; then
        ok=0
    fi
    rm -rf "$dir"
    return "$ok"
}

# The version of an Open MPI wrapper, such as 5.0.11.
mpicc_version()
{
    "$1" --showme:version 2>/dev/null | sed -n 's/.*Open MPI \([0-9.]*[0-9]\).*/\1/p'
}

# version_at_least VERSION MINIMUM
version_at_least()
{
    [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

# The mpicc that scripts/setup chose for a build directory; fails if it is gone or none was chosen.
chosen_mpicc()
{
    local file=$1/mpicc.path wrapper
    [ -f "$file" ] || return 1
    read -r wrapper <"$file" || return 1
    [ -x "$wrapper" ] || return 1
    printf '%s\n' "$wrapper"
}
