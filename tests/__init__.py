"""The tests, in the same rooms as `backends`."""
