#!/bin/bash
# Lays the task out below $ROOT; see ../../lib/prepare.sh for what can be set.
. "$(dirname "$0")/../../lib/prepare.sh"
require git gcc
cp -a "$TASK/project/." "$TREE/"
lay_out recdump
