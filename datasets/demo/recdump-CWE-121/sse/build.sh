#!/bin/sh
# Builds ./recdump with AddressSanitizer in the current directory.
set -eu
exec gcc -std=c11 -g -O1 -Wall -Wextra -Werror -fno-omit-frame-pointer -fsanitize=address -o recdump src/*.c
