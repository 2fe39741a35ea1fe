# For scripts/chaos: one job under `eep launch`, its processes, and what they leave behind.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # the other files' variables

note() # WORDS ...: a line of the log, with the time
{
    local now=$EPOCHREALTIME
    printf '%(%H:%M:%S)T.%s %s\n' "${now%.*}" "${now:11:3}" "$*" >>"$log_dir/log"
}

ctl() # ARGUMENTS ...
{
    timeout -k 5 "$deadline" "$build/eepctl" --endpoint "unix:$run/admin/s" "$@"
}

# ---- processes: those with this run's mark in their environment ----

variable_of() # PID NAME: into `value`
{
    local entry
    value=''
    while IFS= read -r -d '' entry; do
        [ "${entry%%=*}" = "$2" ] && value=${entry#*=} && return 0
    done 2>/dev/null <"/proc/$1/environ"
    return 1
}

marked_pids() { grep -lzsx "EEP_CHAOS=$mark" /proc/[0-9]*/environ | cut -d/ -f3; }

# The ranks that are alive, by number: pids[rank].
find_ranks()
{
    local pid
    pids=()
    for pid in $(marked_pids); do
        variable_of "$pid" PMIX_RANK && pids[value]=$pid
    done
    numbers=("${!pids[@]}")
}

launchers()
{
    local pid name
    for pid in $(marked_pids); do
        read -r name 2>/dev/null <"/proc/$pid/comm" || continue
        case $name in mpirun | prterun) echo "$pid" ;; esac
    done
}

# ---- start and end of a job ----

job_options()
{
    options=(--ep-size "$ranks" --weight-cache "$cache" --silent-after "$silent_after"
        --redundant-experts "$redundant" --on-loss "$on_loss" --backup "$backup")
    [ "$cache" = off ] || options+=(--cache-dir "$cache_dir")
    [ "$rebalance_every" = 0 ] || options+=(--rebalance-every "$rebalance_every" --rebalance-policy shuffle)
    start_ranks=$((ranks + parked))
}

start_job() # NAME
{
    local nodes=()
    run=$log_dir/$1 cache_dir=$shm_dir/$1
    mkdir -p "$run/tmp"
    mkdir -m 700 "$run/admin"
    mkfifo "$run/in" "$run/out"
    echo 0 0 0 0 0 0 0 >"$run/counts"
    : >"$run/outcomes"
    : >"$run/struck"
    : >"$run/shm-names"
    : >"$run/stamp"
    job_options
    [ "$node_size" = 0 ] || nodes=(--node-size "$node_size")
    EEP_CHAOS=$mark TMPDIR=$run/tmp EEP_LOG=info EEP_TIMEOUT=$((deadline / 2)) "$build/eep" launch -n "$start_ranks" "${nodes[@]}" \
        --restarts 100000 -- generate --model "$model" --prompts-file - --json --unordered \
        --admin "unix:$run/admin/s" "${options[@]}" <"$run/in" >"$run/out" 2>"$run/err" &
    launch_pid=$!
    feed &
    feed_pid=$!
    note "$1: $settings; start with $start_ranks ranks, launcher $launch_pid"
    baseline=() # most descriptors of rank 0, of another rank
    background=()
}

starts() { grep -c 'warn: launch: the job is lost' "$run/err"; }

# Wait until so many answers are there. Fails when it hangs or the job ends.
wait_answers() # NUMBER
{
    while read_counts; [ "${answered:-0}" -lt "$1" ]; do
        [ ! -e "$run/hang" ] && kill -0 "$launch_pid" 2>/dev/null || return 1
        sleep 0.02
    done
}

wait_calm()
{
    : >"$run/pause"
    while read_counts; [ "${opened:-1}" -gt 0 ]; do
        [ ! -e "$run/hang" ] && kill -0 "$launch_pid" 2>/dev/null || return 1
        sleep 0.05
    done
}

# Close the input, and wait for the end of the launcher: its status into `status`.
end_job()
{
    local end=$((SECONDS + deadline))
    : >"$run/close"
    while kill -0 "$launch_pid" 2>/dev/null; do
        if [ -e "$run/hang" ] || [ "$SECONDS" -ge "$end" ]; then
            [ -e "$run/hang" ] || echo "no end $deadline s after the input's end" >"$run/hang"
            return 1
        fi
        sleep 0.05
    done
    wait "$launch_pid"
    status=$?
    : >"$run/ended"
    wait "$feed_pid"
    read_counts
    note "the launcher ended with status $status"
}

stop_job()
{
    marked_pids | xargs -r kill -KILL 2>/dev/null
    wait "$launch_pid" 2>/dev/null
    : >"$run/ended"
    wait "$feed_pid"
    read_counts
}

# What is to be known about a job that hangs.
dump()
{
    local pid word
    note "HANGS: $(cat "$run/hang")"
    for word in status operations events; do
        timeout 10 "$build/eepctl" --endpoint "unix:$run/admin/s" "$word" >"$run/hang.$word" 2>&1
    done
    for pid in $(marked_pids); do
        echo "== $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c 1-60)"
        variable_of "$pid" PMIX_RANK && echo "rank $value"
        grep -E '^(State|Threads|VmRSS)' "/proc/$pid/status"
        have gdb && timeout 30 gdb -p "$pid" -batch -ex 'thread apply all bt' 2>/dev/null
    done >"$run/hang.stacks"
}

# ---- descriptors, memory, files ----

descriptors() # PID
{
    local list=("/proc/$1/fd/"*)
    echo "${#list[@]}"
}

# Names in /dev/shm that the ranks map: to be looked for after the end.
note_shm()
{
    local pid
    for pid in "${pids[@]}"; do
        grep -ho '/dev/shm/[^ ]*$' "/proc/$pid/maps" 2>/dev/null
    done | sort -u >>"$run/shm-names"
}

# The number of the process that is rank 0 now, into `leader`.
find_leader()
{
    leader=$(ctl status --json 2>/dev/null | jq '.members[] | select(.rank == 0 and .state == "serving").id')
    leader=${leader:-${numbers[0]-}}
}

# What the ranks have now counts as what they may have; rank 0 has more, and may be another later.
sample_baseline()
{
    local role number count leader
    find_leader
    for number in "${numbers[@]}"; do
        role=$((number == leader ? 0 : 1))
        count=$(descriptors "${pids[number]}")
        [ "$count" -le "${baseline[role]:-0}" ] || baseline[role]=$count
    done
    note "descriptors at the start: rank 0 ${baseline[0]-}, others ${baseline[1]-}"
}

# Descriptors beyond those of the start, over all ranks that are alive, into `grown`.
descriptors_grown()
{
    local role number count leader
    grown=0
    find_ranks
    find_leader
    for number in "${numbers[@]}"; do
        role=$((number == leader ? 0 : 1))
        count=$(descriptors "${pids[number]}")
        note "rank $number has $count descriptors"
        [ "$count" -le "${baseline[role]:-$count}" ] || grown=$((grown + count - baseline[role]))
    done
}

# Crashes that nobody asked for, by whose code it was in: `crashes` of eep, `mpi_crashes`. Open MPI's
# handler of signals tells the stack; the first function that is not the C library's counts.
find_crashes()
{
    local list
    list=$(awk -v struck="$(tr '\n' ' ' <"$run/struck")" '
        BEGIN { split(struck, pids, " "); for (i in pids) asked[pids[i]] = 1 }
        /^\[[^][]*:[0-9]+\] / { pid = $1; gsub(/.*:|\]/, "", pid); pid += 0 }
        /^\[[^][]*:[0-9]+\] \[ *[0-9]+\] / && !/\/libc\.so|linux-vdso/ && !(pid in asked) && !(pid in where) {
            where[pid] = $0 ~ /libmpi|libopen-pal|libpmix|libevent|libprrte/ ? "mpi" : "eep"
            print where[pid], $0
        }
        /ERROR: [A-Z][a-z]*Sanitizer|: runtime error: / { print "eep", $0 }' "$run/err")
    crashes=$(grep -c '^eep' <<<"$list")
    mpi_crashes=$(grep -c '^mpi' <<<"$list")
    [ -z "$list" ] || note "CRASHES: $list"
}

# Processes of the job that are there 5 s after its end, into `left_processes`.
processes_left()
{
    local i
    for ((i = 0; i < 50; i++)); do
        left_processes=$(marked_pids | wc -l)
        [ "$left_processes" != 0 ] || return 0
        sleep 0.1
    done
    marked_pids | while read -r pid; do
        note "LEFT: process $pid $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c 1-60)"
    done
}

# One a line, into the log: how many.
lines_left() # WHAT LINES
{
    [ -z "$2" ] || note "LEFT: $1:" $2
    printf %s "$2" | grep -c .
}

# What is there after the end, into `left_files`, `left_names`, `left_caches`; and of Open MPI's own
# into `left_mpi`.
files_left()
{
    local list
    left_files=$(lines_left files "$(find "$run/tmp" -maxdepth 1 -name 'eep-*'
        find "$cache_dir" -maxdepth 1 \( -name '.new-*' -o -name '.drop-*' \) 2>/dev/null
        find "$run/admin" -type s)")
    left_names=$(lines_left names "$(find /dev/shm -maxdepth 1 -user "$(id -u)" -newer "$run/stamp" \
        \( -name 'eep-node-*' -o -name 'eep-page-*' \) -mmin +0.05)")
    left_caches=0
    [ "$cache" = keep ] || left_caches=$(lines_left caches "$(find "$cache_dir" -mindepth 1 \
        -maxdepth 1 -name 'eep-*' 2>/dev/null)")
    list=$(sort -u "$run/shm-names" | grep -E '^/dev/shm/(sm_segment|osc_sm|vader)' | xargs -r ls -d 2>/dev/null)
    left_mpi=$(printf %s "$list" | grep -c .)
    printf '%s\n' "$list" | xargs -r rm -f
}

cache_is_whole()
{
    [ "$cache" != keep ] || [ ! -d "$cache_dir" ] ||
        timeout 60 "$build/eep" cache verify --cache-dir "$cache_dir" >"$run/verify" 2>&1
}

clean_up()
{
    local rc=$?
    marked_pids | xargs -r kill -KILL 2>/dev/null
    rm -rf "$shm_dir"
    find "$log_dir" -name tmp -type d -prune -exec rm -rf {} +
    [ "$rc" != 0 ] || [ -z "${temporary-}" ] || rm -rf "$temporary"
}
