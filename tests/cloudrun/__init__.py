"""Tests of backends.cloudrun."""
