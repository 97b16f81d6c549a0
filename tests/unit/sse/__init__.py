"""Tests of the SDK without a daemon."""
