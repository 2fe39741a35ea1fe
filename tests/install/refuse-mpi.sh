#!/usr/bin/env bash
# configure refuses what is not an Open MPI with ULFM, and names the three ways out.
set -euo pipefail
: "${EEP_SRC:?}"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
passed=0
failed=0

# refused NAME REASON ARGUMENT...: configure must fail with the reason and the ways out.
refused()
{
    local name=$1 reason=$2 status=0 way
    shift 2
    mkdir "$name"
    (cd "$name" && "$EEP_SRC/configure" "$@" >out 2>err) || status=$?
    for way in "$reason" 'scripts/setup' '--with-mpi=DIR' '--without-mpi'; do
        if [ "$status" -eq 0 ] || ! grep -qF -- "$way" "$name/err"; then
            echo "$name: status $status, expected a refusal that says: $way"
            cat "$name/err"
            failed=$((failed + 1))
            return
        fi
    done
    passed=$((passed + 1))
}

# A wrapper of another MPI: it compiles, but knows no --showme.
mkdir -p other/bin old/bin
cat >other/bin/mpicc <<'END'
#!/bin/sh
case $1 in --showme*) echo "unknown option $1" >&2; exit 1 ;; esac
exec gcc "$@"
END
# Open MPI 4: it tells its flags, but there is no mpi-ext.h with ULFM.
mkdir old/include
echo '#define MPI_COMM_NULL 0' >old/include/mpi.h
echo 'typedef int MPI_Comm;' >>old/include/mpi.h
cat >old/bin/mpicc <<END
#!/bin/sh
case \$1 in
    --showme:compile) echo "-I$scratch/old/include" ;;
    --showme:link) echo "-lm" ;;
    *) exec gcc "\$@" ;;
esac
END
chmod +x other/bin/mpicc old/bin/mpicc

refused other-mpi "is not Open MPI's" --with-mpi="$scratch/other"
refused no-ulfm 'has no ULFM' --with-mpi="$scratch/old"
refused no-ulfm-by-name 'has no ULFM' MPICC="$scratch/old/bin/mpicc"
refused no-such-folder "there is no $scratch/none/bin/mpicc" --with-mpi="$scratch/none"
PATH=$scratch/old/bin:$PATH refused no-ulfm-on-path 'has no ULFM'
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
