# For scripts/chaos: phases, cycles, and the sums.
# shellcheck shell=bash
# shellcheck disable=SC2154 # the other files' variables

declare -A counted=() total=()

add() { total[$1]=$((${total[$1]-0} + $2)); }

most() { [ "$2" -le "${total[$1]-0}" ] || total[$1]=$2; }

# A job, a load, actions until its time is over, a calm end.
run_phase()
{
    local action
    phase_end=$((SECONDS + phase_s))
    [ "$phase_end" -le $((begin + seconds)) ] || phase_end=$((begin + seconds))
    draw_phase "$phase"
    start_job "phase$phase"
    if wait_answers 30; then
        find_ranks
        sample_baseline
        for ((action = 0; SECONDS < phase_end; action++)); do
            draw_action "$phase" "$action"
            nap_ms "$pause_ms"
            act || break
        done
        add actions "$action"
    fi
    finish_job
}

# The end of a job: everything is answered, nothing is left.
finish_job()
{
    local grown=0 status=0
    if [ ! -e "$run/hang" ] && wait_background && wait_calm && descriptors_grown && note_shm && end_job; then
        add bad_ends $((status != 0))
    elif [ -e "$run/hang" ]; then
        dump
        add hangs 1
        stop_job
    else
        note "THE END: the launcher ended before its input"
        add bad_ends 1
        stop_job
    fi
    processes_left
    files_left
    cache_is_whole || { note "CACHE: $(tail -n 3 "$run/verify")" && add bad_caches 1; }
    add_job
}

add_job()
{
    add requests "$sent"
    add answers "$answered"
    add differ "$differ"
    add twice "$twice"
    add strange "$strange"
    add lost $((sent - answered))
    most longest_ms "$longest_ms"
    add restarts "$(starts)"
    add losses "$(grep -c 'ranks go on: noticed' "$run/err")"
    find_crashes
    add crashes "$crashes"
    add mpi_crashes "$mpi_crashes"
    add descriptors "$grown"
    add processes_left "$left_processes"
    add files_left "$left_files"
    add names_left "$left_names"
    add caches_left "$left_caches"
    add mpi_files_left "$left_mpi"
    add mpi_stalls "$(grep -c 'does not return: a rank may' "$run/err")"
    add hung_operations "$(grep -c ' hung$' "$run/outcomes")"
    add fenced_alive "$(grep -c '^fenced' "$run/outcomes")"
    cat "$run/outcomes" >>"$log_dir/outcomes"
    note "sums: $(sums_json)"
}

# What must be 0.
ZEROES=(differ lost twice strange hangs crashes bad_ends hung_operations fenced_alive descriptors processes_left
    files_left bad_caches memory_grown)

failures()
{
    local name sum=0
    for name in "${ZEROES[@]}"; do
        sum=$((sum + ${total[$name]-0}))
    done
    echo "$sum"
}

pairs() # NAME ... of `total`
{
    local name
    for name in "$@"; do
        printf '"%s":%s,' "$name" "${total[$name]-0}"
    done
}

sums_json()
{
    local name actions='' operations
    for name in $(printf '%s\n' "${!counted[@]}" | sort); do
        actions+="\"$name\":${counted[$name]},"
    done
    operations=$(sort "$log_dir/outcomes" 2>/dev/null | uniq -c |
        awk '{ printf "%s\"%s %s\":%d", (NR > 1 ? "," : ""), $2, $3, $1 }')
    printf '{"seed":%s,"seconds":%s,%s%s"failures":%s,"done":{%s},"operations":{%s}}\n' "$seed" \
        $((SECONDS - begin)) "$(pairs requests answers actions restarts losses longest_ms mpi_crashes mpi_stalls \
            names_left caches_left mpi_files_left cycles_done)" "$(pairs "${ZEROES[@]}")" "$(failures)" "${actions%,}" "$operations"
}

# In words, and as JSON; the status of this program.
report()
{
    local rc=0 json
    json=$(sums_json)
    [ "$(failures)" = 0 ] || rc=1
    jq -r 'to_entries[] | select(.value | type == "number") | "\(.key)\t\(.value)"' <<<"$json" |
        while IFS=$'\t' read -r name value; do printf '%-18s %s\n' "$name" "$value"; done
    jq -r '.done, .operations | to_entries[] | "  \(.key) \(.value)"' <<<"$json" | paste -s -d, -
    if [ "$rc" != 0 ]; then
        say "chaos: FAILED with seed $seed; its logs are in $log_dir"
    fi
    printf '%s\n' "$json"
    return "$rc"
}

# ---- only leaving and coming back ----

resident_kb() # PID
{
    awk '/^VmRSS/ { print $2 }' "/proc/$1/status" 2>/dev/null
}

# Memory of all ranks, in kB, into `memory`.
sample_memory() # CYCLES
{
    local number kb each=()
    memory=0
    find_ranks
    for number in "${numbers[@]}"; do
        kb=$(resident_kb "${pids[number]}")
        each+=("$kb")
        memory=$((memory + kb))
    done
    note "resident after $1 cycles: ${each[*]} kB"
}

cycle() { ctl scale --to $((ranks - 1)) >>"$run/cycles" 2>&1 && ctl scale --to "$ranks" >>"$run/cycles" 2>&1; }

# The first five find what is taken once.
run_cycles()
{
    local i first=0 memory=0
    phase=0 ranks=4 parked=0 node_size=0 cache=job rebalance_every=0 silent_after=10 redundant=0
    on_loss=shrink backup=none
    settings='cycles'
    start_job cycles
    wait_answers 30
    for ((i = 0; i < cycles + 5; i++)); do
        if [ "$i" = 5 ]; then
            sample_memory "$i"
            first=$memory
            sample_baseline
        fi
        cycle || { note "CYCLE $i fails: $(tail -n 1 "$run/cycles")" && add bad_ends 1 && break; }
        read_counts
        wait_answers $((answered + 5)) || break
        [ $((i % 10)) != 9 ] || sample_memory $((i + 1))
    done
    add cycles_done $((i - 5))
    sample_memory "$i"
    [ $((memory * 100)) -le $((first * 105)) ] || add memory_grown $((memory - first))
    finish_job
}
