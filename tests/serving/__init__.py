"""Tests of what is the same wherever vLLM runs."""
