"""One simulator, twenty times faster than real, for the tests that only look at answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving.simulator.running import Simulator, start


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    """Limits as the recorded server had them."""
    folder = tmp_path_factory.mktemp("simulator")
    limits = ("--max-model-len=2048", "--max-num-seqs=8", "--admission-cap=0")
    with start(folder, *limits, "--time-scale=20", "--language-model-only") as simulator:
        simulator.wait_until_ready()
        yield simulator
