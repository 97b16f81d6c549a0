#!/bin/sh
# Runs ./recdump on every case. A case file holds, line by line: the input as printf takes it, the exit code, and
# what is printed, standard error last.
set -u
input=$(mktemp)
trap 'rm -f "$input"' EXIT
failed=0
count=0
for case in tests/cases/*.case; do
    count=$((count + 1))
    # shellcheck disable=SC2059  # the line is a format
    printf "$(sed -n 1p "$case")" >"$input"
    printed=$(./recdump "$input" 2>&1)
    code=$?
    if [ "$code" != "$(sed -n 2p "$case")" ] || [ "$printed" != "$(tail -n +3 "$case")" ]; then
        printf 'FAILED %s: code %s\n%s\n' "$case" "$code" "$printed"
        failed=$((failed + 1))
    fi
done
echo "$count cases, $failed failed"
[ "$failed" = 0 ]
