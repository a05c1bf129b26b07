"""Tests of backends.clouds."""
