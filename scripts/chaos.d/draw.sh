# For scripts/chaos: what a seed decides. The settings of a phase and its k-th action depend on seed,
# phase and k alone, not on what happened before.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # the other files' variables

# The next number from 0 to $1 - 1 into `drawn` (splitmix64; the masks undo the sign of >>).
draw()
{
    local z
    random=$((random + 0x9E3779B97F4A7C15))
    z=$(((random ^ (random >> 30 & 0x3FFFFFFFF)) * 0xBF58476D1CE4E5B9))
    z=$(((z ^ (z >> 27 & 0x1FFFFFFFFF)) * 0x94D049BB133111EB))
    z=$((z ^ (z >> 31 & 0x1FFFFFFFF)))
    drawn=$(((z & 0x7FFFFFFFFFFFFFFF) % $1))
}

draw_from() # PHASE NUMBER
{
    random=$seed
    draw 0x7FFFFFFFFFFFFFFF && random=$((drawn + $1))
    draw 0x7FFFFFFFFFFFFFFF && random=$((drawn + $2))
}

# How often each action comes, of the sum.
weights=(
    kill:14 kill-some:8 kill-again:10 kill-node:6 stop:10
    drain:8 scale-down:6 scale-up:12 rebalance:10 abort:8 kill-within:8
    mpirun:5 kill-all:4
)

# Settings of a phase: how many ranks serve and are parked, pretended nodes, cache, moves.
draw_phase() # PHASE
{
    local moves caches
    draw_from "$1" 1000000
    draw $((ranks_max - 2)) && ranks=$((3 + drawn))
    draw 3 && parked=$drawn
    draw 2 && node_size=$((drawn * 2))
    caches=(job job keep off)
    draw 4 && cache=${caches[drawn]}
    moves=(0 0 4 20)
    draw 4 && rebalance_every=${moves[drawn]}
    [ "$cache" != off ] || rebalance_every=0 # experts move within a cache only
    draw 3 && silent_after=$((1 + drawn))
    draw 2 && redundant=$((drawn * 16))
    on_loss=shrink backup=none
    draw 2 && [ "$drawn" = 0 ] || on_loss=respawn
    draw 2 && [ "$drawn" = 0 ] || [ "$node_size" = 0 ] || backup=partner
    settings="ranks $ranks, parked $parked, node size $node_size, cache $cache, rebalance every \
$rebalance_every, silent after $silent_after, redundant $redundant, on loss $on_loss, backup $backup"
}

# The k-th action: its kind, three numbers that it uses as it needs, the time before it (ms).
draw_action() # PHASE K
{
    local entry sum=0 at
    draw_from "$1" "$2"
    for entry in "${weights[@]}"; do
        sum=$((sum + ${entry#*:}))
    done
    draw "$sum" && at=$drawn
    for entry in "${weights[@]}"; do
        kind=${entry%:*}
        at=$((at - ${entry#*:}))
        [ "$at" -ge 0 ] || break
    done
    draw 1000 && a=$drawn
    draw 1000 && b=$drawn
    draw 1000 && c=$drawn
    draw 1200 && pause_ms=$drawn
}

print_plan()
{
    local phase k
    for ((phase = 0; phase * phase_s < seconds; phase++)); do
        draw_phase "$phase"
        echo "phase $phase: $settings"
        for ((k = 0; k < phase_s; k++)); do
            draw_action "$phase" "$k"
            echo "  $k: $kind $a $b $c after $pause_ms ms"
        done
    done
}
