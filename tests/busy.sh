#!/bin/bash
# Runs tests under memory pressure again and again while spinning processes keep the machine busy: what fails once in a
# hundred runs has failed.
#
#   tests/busy.sh [ROUNDS [SPINNERS [FILTER…]]]      (20 rounds, 8 processes, the filters below)
#
# Ends with a line of how many rounds passed; status 1 if one failed. A round takes about three minutes on two processors:
# twenty of them an hour.
set -uo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-20}
spinners=${2:-8}
shift $(($# < 2 ? $# : 2))
filters=("$@")
# Each of these has more memory than its cap, and most of them fork, lock, map or move while pages are out.
((${#filters[@]})) || filters=(
    children_that_are_cloned every_process_of_a_family a_program_that_brings_its_own locks_hold
    memory_that_may who_holds_memory what_cannot_fit child_of_vfork nobody_is_killed shared_memory_is_charged
)

cargo build --workspace || exit 2
cargo test -p pagetide-cli --no-run || exit 2
pids=()
trap 'kill "${pids[@]}" 2>/dev/null' EXIT
for _ in $(seq "$spinners"); do
    bash -c 'while :; do :; done' &
    pids+=($!)
done
log=$(mktemp)
failed=0
for round in $(seq "$rounds"); do
    begun=$SECONDS
    if cargo test -p pagetide-cli --no-fail-fast --test '*' -- "${filters[@]}" >"$log" 2>&1; then
        echo "round $round: passed, $((SECONDS - begun)) s"
    else
        failed=$((failed + 1))
        echo "round $round: FAILED, $((SECONDS - begun)) s"
        cat "$log"
    fi
done
rm -f "$log"
echo "$((rounds - failed)) passed, $failed failed"
exit $((failed > 0))
