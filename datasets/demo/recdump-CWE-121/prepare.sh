#!/bin/bash
# Lays the task out below $ROOT; see ../../lib/prepare.sh for what can be set.
. "$(dirname "$0")/../../lib/prepare.sh"
require git gcc
# Not the owner: the checkout may be another user's, whose repositories git refuses.
cp -r "$TASK/project/." "$TREE/"
lay_out recdump
