"""What list_models says of checkpoints on a T4."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from backends.gce.models import list_models

if TYPE_CHECKING:
    from backends.gce.looking import GceLooking


class _NoMachines:
    async def t4_machines(self) -> list[object]:
        return []


async def test_each_encoding_of_a_repository_is_judged_by_itself() -> None:
    entries = await list_models(cast("GceLooking", _NoMachines()))
    notes = {(entry.id, entry.encoding): str(entry.note) for entry in entries}
    assert "does not serve" not in notes["google/gemma-4-E2B-it", "bf16"], "the default model"
    assert "vLLM does not serve fp8" in notes["google/gemma-4-E2B-it", "fp8"]
