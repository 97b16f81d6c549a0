#!/bin/sh
set -eu
/ssebench/scripts/build.sh
ASAN_OPTIONS=detect_leaks=0 exec sh tests/run.sh
