"""What the newest instance's start looks like, read from the log entries of all instances."""

from __future__ import annotations

from backends.cloudrun.logs import Entry, newest_sight
from backends.serving.startup_log import Phase
from tests.cloudrun.made import READY, STARTING

LIMITED = "Rate limited. Waiting 253.0s before retry [Retry 1/5]."


def said(instance: str, *lines: str, log: str = "stderr", severity: str = "INFO") -> list[Entry]:
    """Lines of one instance."""
    return [Entry(0.0, severity, log, line, instance, "gemma4-00001") for line in lines]


def test_only_the_newest_instance_counts() -> None:
    entries = [*said("a", *READY), *said("b", *STARTING), *said("a", "INFO:     Shutting down")]
    seen = newest_sight(entries)
    assert seen.progress.phase is Phase.LOADING_WEIGHTS
    assert seen.before == ""


def test_a_new_instance_that_is_silent_keeps_what_the_one_before_waited_for() -> None:
    probe = said("a", "STARTUP HTTP probe failed.", log="system", severity="ERROR")
    entries = [*said("a", *STARTING, LIMITED), *probe, *said("b", *STARTING[:1])]
    seen = newest_sight(entries)
    assert seen.before == LIMITED
    assert seen.trouble == ""


def test_a_new_instance_keeps_why_the_one_before_failed() -> None:
    broken = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    entries = [*said("a", *STARTING, broken), *said("b", *STARTING[:1])]
    assert "CUDA out of memory" in newest_sight(entries).before


def test_what_an_instance_once_waited_for_is_over_when_it_was_ready_after_all() -> None:
    entries = [*said("a", *STARTING, LIMITED, *READY[3:]), *said("b", *STARTING[:1])]
    assert newest_sight(entries).before == ""


def test_no_entries_tell_nothing() -> None:
    seen = newest_sight([])
    assert seen.last_at == 0
    assert seen.before == ""
