"""What a target cannot do is refused with what to do instead."""

from __future__ import annotations

import pytest

from backends.base import ABILITIES
from backends.core.errors import NotSupportedError
from backends.core.names import TARGETS
from backends.registry import backend_class


@pytest.mark.parametrize("target", TARGETS)
def test_every_tool_that_a_target_lacks_is_refused_with_another_way(target: str) -> None:
    """Not with a list of what else there is."""
    kind = backend_class(target)
    lacking = ABILITIES.keys() - kind.abilities()
    assert lacking
    for tool in lacking:
        with pytest.raises(NotSupportedError) as refused:
            kind.require(tool)
        assert refused.value.next_action == kind.INSTEAD[tool]
    assert kind.INSTEAD.keys() <= lacking, "it can do what it is said to lack"
