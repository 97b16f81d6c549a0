#!/bin/sh
# run.sh FILE: dumps the file; fails when AddressSanitizer reports or a signal ends the program.
# That the file is refused as malformed (code 2) is fine.
set -u
output=$(ASAN_OPTIONS=detect_leaks=0 timeout 20 ./recdump "$1" 2>&1)
code=$?
printf '%s\n' "$output"
case $output in
*AddressSanitizer* | *"Segmentation fault"*) exit 1 ;;
esac
[ "$code" = 0 ] || [ "$code" = 2 ]
