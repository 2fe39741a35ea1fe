#!/usr/bin/env bash
# Every option that --help tells is in the command's man page, and the other way round.
set -euo pipefail
: "${EEP_SRC:?}" "${EEP_BUILD:?}"

passed=0
failed=0
program=eep

options_of_help()
{
    "$EEP_BUILD/$program" "$@" --help | sed -n 's/^ *\(--[a-z][a-z-]*\).*/\1/p'
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

# The names that a help text lists: two spaces, the name, at least two spaces, what it does.
names_in_help()
{
    "$EEP_BUILD/$program" "$@" --help | sed -n '/^options:/q; s/^  \([a-z][a-z-]*\)   *.*/\1/p'
}

commands=$(names_in_help)
[ -n "$commands" ] || { echo "eep --help lists no commands" && exit 1; }
for command in $commands; do
    if [ ! -f "$EEP_SRC/doc/man/eep-$command.1" ]; then
        echo "there is no man page of eep $command"
        failed=$((failed + 1))
        continue
    fi
    subcommands=()
    for name in $(names_in_help "$command"); do
        subcommands+=("$command $name")
    done
    [ "${#subcommands[@]}" -gt 0 ] || subcommands=("$command")
    same "eep-$command.1" "${subcommands[@]}"
done

# eepctl has one page for all its commands.
program=eepctl
mapfile -t commands < <(names_in_help)
[ "${#commands[@]}" -gt 0 ] || { echo "eepctl --help lists no commands" && exit 1; }
same eepctl.1 "" "${commands[@]}"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
