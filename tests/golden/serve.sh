# For script tests of a job that serves while things happen to it: prompts come by a pipe that is kept
# open, so that the job lasts until the test has done all that it wants, and no longer. After lib.sh.
# shellcheck shell=bash
# shellcheck disable=SC2154 # lib.sh's variables

model=$data/tiny-qwen3-moe
socket=unix:$work/s
job=''

needs_admin() {
    if [ "$max_ranks" = 1 ] || [ ! -x "$EEP_BUILD/eepctl" ]; then
        echo "built without MPI or without the admin endpoint"
        exit 77
    fi
}

# prompts ROUNDS TOKENS: and the answers of one rank that nothing happens to.
prompts() {
    local i
    for ((i = 0; i < $1 * 8; i++)); do
        echo "{\"prompt_ids\": [$((3 + i % 8 * 5)), 7, 1, $((3 + i % 8 * 5)), 12], \"max_tokens\": $2, \"ignore_eos\": true}"
    done >"$work/prompts"
    on_ranks 1 eep generate --model "$model" --prompts-file "$work/prompts" --json \
        --weight-cache off >"$work/base.out" 2>"$work/base.err" || cat "$work/base.err"
}

ctl() { timeout 60 "$EEP_BUILD/eepctl" --endpoint "$socket" "$@" 2>&1; }

# Its words match, whether it is an error or not.
says() { # PATTERN ARGUMENTS ...
    ctl "${@:2}" >"$work/says" || true
    grep -qE "$1" "$work/says" || { cat "$work/says" && return 1; }
}

holds() { # JQ-EXPRESSION: true of the status
    ctl status --json >"$work/status" && jq -e "$1" "$work/status" >/dev/null || {
        cat "$work/status" && return 1
    }
}

# A new rank 0, and what it shows, needs a moment.
eventually() { # COMMAND ...
    local i
    for ((i = 0; i < 400; i++)); do
        "$@" >/dev/null && return 0
        sleep 0.05
    done
    echo "never: $*" && "$@"
}

# The members in a state, by their ids.
are() { # STATE JSON-LIST
    eventually holds "[.members[] | select(.state == \"$1\").id] | sort == $2"
}

# All prompts, once more.
feed() {
    cat "$work/prompts" >&9
    awk -v by="$(wc -l <"$work/expected")" 'match($0, /"index":[0-9]+/) {
        print substr($0, 1, RSTART + 7) substr($0, RSTART + 8, RLENGTH - 8) + by substr($0, RSTART + RLENGTH)
    }' "$work/base.out" >"$work/more"
    cat "$work/more" >>"$work/expected"
}

start() { # PROCESSES ARGUMENTS ...
    : >"$work/expected"
    rm -f "$work/s" "$work/fifo"
    mkfifo "$work/fifo"
    EEP_LOG=${EEP_LOG:-info} on_ranks "$1" eep generate --model "$model" --prompts-file - --json \
        --admin "$socket" "${@:2}" <"$work/fifo" >"$work/out" 2>"$work/err" &
    job=$!
    exec 9>"$work/fifo"
    feed
    eventually test -S "$work/s"
}

# The answers are right; the log says so, if a pattern is given.
end() { # [PATTERN]
    exec 9>&-
    wait "$job" || { cat "$work/err" && return 1; }
    cmp "$work/expected" "$work/out" || { cat "$work/err" && return 1; }
    grep -qE "${1:-}" "$work/err" || { cat "$work/err" && return 1; }
}

pids_of() { # RANKS: as they were started
    local pid rank
    for pid in $(pgrep -x eep); do
        { tr '\0' '\n' <"/proc/$pid/environ"; } >"$work/environ" 2>/dev/null
        grep -qx "TMPDIR=$work/tmp.*" "$work/environ" || continue
        for rank in "$@"; do
            ! grep -qx "PMIX_RANK=$rank" "$work/environ" || echo "$pid"
        done
    done
}

lose() { # RANKS
    # shellcheck disable=SC2046 # one word per process
    kill -9 $(pids_of "$@")
}

# A case that failed leaves its job running: the next one needs the endpoint.
try() { # NAME COMMAND ...
    check "$@"
    exec 9>&-
    [ -z "$job" ] || wait "$job" 2>/dev/null
}
