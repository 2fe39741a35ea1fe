#!/usr/bin/env bash
# Every option that --help tells is in the command's man page, and the other way round.
set -euo pipefail
: "${EEP_SRC:?}" "${EEP_BUILD:?}"

passed=0
failed=0

options_of_help()
{
    "$EEP_BUILD/eep" "$@" --help | sed -n 's/^ *\(--[a-z][a-z-]*\).*/\1/p'
}

options_of_page()
{
    sed -n 's/\\-/-/g; s/^\.BI\{0,1\}R\{0,1\} *\(--[a-z][a-z-]*\).*/\1/p' "$1"
}

# same PAGE COMMAND...: the options of all commands together against one page.
same()
{
    local page=$EEP_SRC/doc/man/$1 difference
    shift
    difference=$(diff <(for command in "$@"; do
        # shellcheck disable=SC2086 # a command may be two words
        options_of_help $command
    done | LC_ALL=C sort -u) <(options_of_page "$page" | LC_ALL=C sort -u)) || true
    if [ -n "$difference" ]; then
        printf '%s (< only in --help, > only in the page):\n%s\n' "$page" "$difference"
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
}

same eep-generate.1 generate
same eep-eval.1 eval
same eep-bench.1 'bench moe' 'bench dispatch' 'bench model'
same eep-launch.1 launch
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
