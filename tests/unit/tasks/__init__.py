"""Tests of what a task is and of the command that looks after datasets."""
