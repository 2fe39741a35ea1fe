# For scripts/chaos: what is done to a running job. An action takes its numbers a, b, c (0 ... 999) as
# they are drawn; which process they mean depends on who is alive.
# shellcheck shell=bash
# shellcheck disable=SC2154 # the other files' variables

SIGNALS=(KILL KILL SEGV TERM)

count() { counted[$1]=$((${counted[$1]-0} + ${2:-1})); }

nap_ms() { sleep "$(($1 / 1000)).$(printf %03d $(($1 % 1000)))"; }

strike() # SIGNAL RANK ...
{
    local signal=$1 number
    shift
    for number in "$@"; do
        note "  SIG$signal to rank $number (process ${pids[number]})"
        kill -s "$signal" "${pids[number]}" 2>/dev/null
        [ "$signal" = STOP ] || echo "${pids[number]}" >>"$run/struck"
    done
    count "SIG$signal" $#
}

# The $1-th of the ranks that are alive, into `victim`.
pick()
{
    victim=${numbers[$1 % ${#numbers[@]}]}
}

# ---- killing ----

do_kill()
{
    pick "$a"
    strike "${SIGNALS[b % 4]}" "$victim"
}

# Several at once, but not all.
do_kill-some()
{
    local first=$((a % ${#numbers[@]})) many=$((2 + b % ${#numbers[@]})) i victims=()
    [ "$many" -lt ${#numbers[@]} ] || many=$((${#numbers[@]} - 1))
    for ((i = 0; i < many; i++)); do
        victims+=("${numbers[(first + i) % ${#numbers[@]}]}")
    done
    strike "${SIGNALS[c % 4]}" "${victims[@]}"
}

# One more during the recovery, which takes some 40 ms.
do_kill-again()
{
    pick "$a"
    strike KILL "$victim"
    nap_ms $((b % 80))
    find_ranks
    [ ${#numbers[@]} -gt 0 ] || return 0
    pick "$c"
    strike "${SIGNALS[c % 4]}" "$victim"
}

# All ranks of a pretended node; without such nodes two neighbours.
do_kill-node()
{
    local node number victims=()
    pick "$a"
    node=$((victim / 2))
    for number in "${numbers[@]}"; do
        [ $((number / 2)) != "$node" ] || victims+=("$number")
    done
    strike "${SIGNALS[b % 4]}" "${victims[@]}"
}

do_kill-all() { strike KILL "${numbers[@]}"; }

do_mpirun()
{
    local pid
    for pid in $(launchers); do
        note "  SIGKILL to mpirun (process $pid)"
        kill -KILL "$pid" 2>/dev/null
    done
    count mpirun_kills
}

# ---- standing still ----

# It goes on later. If the others have counted it as lost, it must have ended, or end now.
do_stop()
{
    local still_ms=$((100 + b * (silent_after + 2)))
    pick "$a"
    strike STOP "$victim"
    continue_later "$victim" "${pids[victim]}" "$still_ms" &
    background+=($!)
    [ $((c % 2)) = 0 ] || nap_ms "$still_ms"
}

continue_later() # RANK PROCESS MS
{
    local i began
    began=$(starts)
    nap_ms "$3"
    kill -CONT "$2" 2>/dev/null || { note "  rank $1 was ended while it stood still" && return; }
    note "  rank $1 goes on after $3 ms"
    for ((i = 0; i < deadline * 5; i++)); do
        kill -0 "$2" 2>/dev/null || return 0
        is_dead_for_others "$1" || return 0
        [ "$(starts)" = "$began" ] || return 0
        sleep 0.2
    done
    note "FENCED: rank $1 (process $2) counts as lost and lives"
    echo fenced alive >>"$run/outcomes"
}

is_dead_for_others() # MEMBER
{
    ctl status --json 2>/dev/null | jq -e --argjson id "$1" \
        'any(.members[]; .id == $id and .state == "dead")' >/dev/null
}

# ---- operations ----

# Give it to eepctl, and note what became of it.
operate() # KIND ARGUMENTS ...
{
    local out='' rc=0 began outcome
    began=$(starts)
    out=$(ctl "${@:2}" --json 2>&1) || rc=$?
    case $rc:$out in
        0:*) outcome=done ;;
        124:* | 137:*)
            outcome=hung
            [ "$(starts)" = "$began" ] || outcome=lost
            ;;
        *'"state":"aborted"'*) outcome=aborted ;;
        *'"state":"failed"'*) outcome=failed ;;
        *'"state":"done"'*) outcome=late ;; # an abort that came too late
        *'"state":"refused"'* | *'(4'[0-9][0-9]')'* | *'(50'[13]')'*) outcome=refused ;;
        *) outcome=lost ;; # the engine ended, or rank 0 did
    esac
    echo "$1 $outcome" >>"$run/outcomes"
    note "  ${*:2}: $outcome: ${out:0:400}"
}

# Every other one is waited for; the rest runs on while other things happen.
begin_operation() # KIND ARGUMENTS ...
{
    operate "$@" &
    background+=($!)
    [ $((c % 2)) = 0 ] || wait $!
}

# Who leaves is parked and can come back; one in eight ends.
leavers() { if [ $((c % 8)) = 0 ]; then echo --exit; fi; }

do_drain()
{
    local members
    pick "$a"
    members=("$victim")
    pick "$b"
    [ $((c % 3)) != 0 ] || [ "$victim" = "${members[0]}" ] || members+=("$victim")
    # shellcheck disable=SC2046 # an option or none
    begin_operation drain drain $(leavers) "${members[@]}"
}

# How many serve, as rank 0 says; else as many as live.
serving()
{
    local n
    n=$(timeout 10 "$build/eepctl" --endpoint "unix:$run/admin/s" status --json 2>/dev/null |
        jq '[.members[] | select(.state == "serving")] | length' 2>/dev/null)
    echo "${n:-${#numbers[@]}}"
}

do_scale-down()
{
    local to=$(($(serving) - 1 - a % 2))
    # shellcheck disable=SC2046 # an option or none
    begin_operation scale_down scale --to $((to > 1 ? to : 1)) $(leavers)
}

do_scale-up() { begin_operation scale_up scale --to $(($(serving) + 1 + (a % 4 == 0))); }

do_rebalance() { begin_operation rebalance rebalance; }

# One of the operations, not waited for.
any_operation() # NUMBER
{
    local n
    n=$(serving)
    case $(($1 % 4)) in
        0) operate scale_down scale --to $((n > 2 ? n - 1 : 1)) & ;;
        1) operate scale_up scale --to $((n + 1)) & ;;
        2) operate rebalance rebalance & ;;
        3) pick "$a" && operate drain drain "$victim" & ;;
    esac
    background+=($!)
}

do_abort()
{
    any_operation "$a"
    nap_ms $((b % 60))
    operate abort abort
}

do_kill-within()
{
    any_operation "$b"
    nap_ms $((b % 60))
    find_ranks
    [ ${#numbers[@]} -gt 0 ] || return 0
    pick "$c"
    strike KILL "$victim"
}

# ---- one after the other ----

# With one rank left there is nothing to learn from these: the job ends, and is started again.
instead()
{
    case $kind in
        kill* | scale-down) [ ${#numbers[@]} -le 1 ] || return 0 ;;
        *) return 0 ;;
    esac
    kind=mpirun
    [ $((b % 2)) != 0 ] || kind=kill-all
    note "  only one rank is left: $kind"
}

# An action begins when an answer has come since the last one, so that no more than one start in a
# row is lost.
act()
{
    local before
    read_counts
    before=$answered
    note "action $phase.$action: $kind $a $b $c"
    find_ranks
    note_shm
    [ ${#numbers[@]} -gt 0 ] || { note "  no rank is alive" && return 0; }
    instead
    count "$kind"
    "do_$kind"
    wait_answers $((before + 1))
}

# A child that has ended is not waited for here: other children live long.
wait_background()
{
    local pid
    for pid in "${background[@]}"; do
        wait "$pid"
    done
    background=()
}
