"""Target name -> backend class, imported on first use so that starting costs nothing."""

from __future__ import annotations

import importlib
from typing import cast

from backends.base import Backend, Services
from backends.core.errors import InvalidInputError
from backends.core.names import TARGETS

# Adding a target: its name in core/names.py, its module and class here, a page in docs/.
_CLASSES: dict[str, tuple[str, str]] = {
    "cloudrun-l4": ("backends.cloudrun.backend", "CloudRunL4Backend"),
    "cloudrun-rtx6000": ("backends.cloudrun.backend", "CloudRunRtx6000Backend"),
    "sagemaker-l4": ("backends.sagemaker.backend", "SageMakerBackend"),
    "gce-t4": ("backends.gce.backend", "GceT4Backend"),
    "tpu-v6e": ("backends.tpu.backend", "TpuBackend"),
    "local": ("backends.local", "LocalBackend"),
}


def backend_class(target: str) -> type[Backend]:
    """The class behind a target.

    Raises:
        InvalidInputError: There is no such target.
    """
    if target not in _CLASSES:
        raise InvalidInputError("target", "is unknown.", allowed=", ".join(TARGETS))
    module, name = _CLASSES[target]
    return cast("type[Backend]", getattr(importlib.import_module(module), name))


class Backends:
    """The backends of one server, each made on first use.

    Args:
        services: What each is given.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._made: dict[str, Backend] = {}

    def get(self, target: str) -> Backend:
        """The backend of a target.

        Raises:
            InvalidInputError: There is no such target.
        """
        if target not in self._made:
            self._made[target] = backend_class(target)(self._services)
        return self._made[target]


def abilities_of(targets: tuple[str, ...]) -> set[str]:
    """What at least one of the targets can do."""
    return set().union(*(backend_class(target).abilities() for target in targets))
