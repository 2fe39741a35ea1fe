# For scripts/chaos: prompts with known answers, a process that keeps so many of them open and checks
# each answer.
# shellcheck shell=bash
# shellcheck disable=SC2154 # the other files' variables

PROMPTS=48

prompt_line() # NUMBER
{
    local i=$1 draws=''
    [ $((i % 3)) != 1 ] || draws=", \"temperature\": 0.8, \"top_k\": 20, \"seed\": $i"
    echo "{\"prompt_ids\": [$((i % 30 + 3)), 7, 1, $i, 12], \"max_tokens\": $((20 + i * 397 % 900))," \
        "\"ignore_eos\": true$draws}"
}

# What one rank answers; all later answers are compared with these, byte for byte.
make_answers()
{
    local i line
    for ((i = 0; i < PROMPTS; i++)); do
        prompts[i]=$(prompt_line "$i")
    done
    printf '%s\n' "${prompts[@]}" >"$log_dir/prompts"
    TMPDIR=$log_dir timeout 300 "$EEP_ROOT/scripts/mpi-run" -n 1 eep generate --model "$model" \
        --prompts-file "$log_dir/prompts" --json --threads 1 --weight-cache off >"$log_dir/answers" \
        2>"$log_dir/answers.err" || die "one rank alone fails: $(tail -n 3 "$log_dir/answers.err")"
    i=0
    while IFS= read -r line; do
        answers[i++]=${line#*,}
    done <"$log_dir/answers"
    [ "$i" = "$PROMPTS" ] || die "one rank alone gave $i answers, not $PROMPTS"
}

# ---- the process that feeds; its files in $run: in, out (pipes), counts, differ, hang; it obeys to
# pause, close, ended ----

now_ms()
{
    local us=${EPOCHREALTIME/./}
    ms=$((us / 1000))
}

send()
{
    printf '%s\n' "${prompts[(sent * 7 + seed) % PROMPTS]}" >&5 2>/dev/null || return 1
    open[sent]=$ms
    sent=$((sent + 1))
}

bad_answer() # COUNTER WHY LINE
{
    printf -v "$1" %s $((${!1} + 1))
    printf '%s: %s\n' "$2" "$3" >>"$run/differ"
}

take_answer() # LINE
{
    local index=${1%%,*}
    index=${index#'{"index":'}
    case $index in
        '' | *[!0-9]*) bad_answer strange "not an answer" "$1" && return ;;
    esac
    if [ -z "${open[index]-}" ]; then
        [ "$index" -lt "$sent" ] && bad_answer twice "printed twice" "$1" && return
        bad_answer strange "never asked" "$1" && return
    fi
    unset "open[index]"
    answered=$((answered + 1))
    [ "${1#*,}" = "${answers[(index * 7 + seed) % PROMPTS]}" ] ||
        bad_answer differ "want ${answers[(index * 7 + seed) % PROMPTS]}, got" "$1"
    [ $((ms - last_ms)) -le "$longest_ms" ] || longest_ms=$((ms - last_ms))
    last_ms=$ms
}

write_counts()
{
    printf '%s\n' "$sent $answered $differ $twice $strange $longest_ms ${#open[@]}" >"$run/counts"
}

# Nothing at all for so long, or a request that others overtake for ever.
look_for_hang()
{
    local index
    [ "${#open[@]}" -gt 0 ] && [ ! -e "$run/hang" ] || return 0
    if [ $((ms - last_ms)) -gt $((deadline * 1000)) ]; then
        echo "no answer for $(((ms - last_ms) / 1000)) s, open: ${!open[*]}" >"$run/hang"
    fi
    for index in "${!open[@]}"; do
        [ $((ms - open[index])) -le $((3 * deadline * 1000)) ] ||
            echo "request $index is open for $(((ms - open[index]) / 1000)) s" >"$run/hang"
        break # the oldest
    done
}

feed()
{
    local sent=0 answered=0 differ=0 twice=0 strange=0 longest_ms=0 ms last_ms piece part='' closed=false
    local -a open=()
    trap '' PIPE
    exec 5>"$run/in" 6<"$run/out"
    now_ms
    last_ms=$ms
    while :; do
        now_ms
        while [ "${#open[@]}" -lt "$in_flight" ] && [ ! -e "$run/pause" ] && ! "$closed"; do
            [ "${#open[@]}" -gt 0 ] || last_ms=$ms
            send || break
        done
        if [ -e "$run/close" ] && ! "$closed"; then
            exec 5>&-
            closed=true
        fi
        if IFS= read -r -t 0.5 -u 6 piece; then
            now_ms
            take_answer "$part$piece"
            part=''
        elif [ $? -gt 128 ] && [ ! -e "$run/ended" ]; then
            part+=$piece
        else
            break # also where a process is left that could still write
        fi
        look_for_hang
        write_counts
    done
    write_counts
}

# For the main process: the feeder's counts as they are now.
read_counts()
{
    local line
    IFS= read -r line <"$run/counts" || return 0 # between truncating and writing
    read -r sent answered differ twice strange longest_ms opened <<<"$line"
}
