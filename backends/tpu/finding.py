"""Which requests, nodes and searches there are, and which of them a name means: reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.base import Backend, Services
from backends.core.errors import (
    InvalidInputError,
    NotFoundError,
    NotManagedError,
)
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together
from backends.tpu.records import TpuNode, TpuRequest

if TYPE_CHECKING:
    from backends.core.operations import Operation

SEARCH = "search"


class TpuFinding(Backend):
    """Finds requests, nodes and searches by name."""

    def __init__(self, services: Services) -> None:
        from backends.clouds.google import GoogleCloud
        from backends.tpu.reading import TpuApi

        super().__init__(services)
        self.cloud = GoogleCloud(services)
        self.api = TpuApi(self.cloud)

    async def world(self) -> tuple[list[TpuRequest], list[TpuNode]]:
        """Every request of both control planes, and nodes that no request owns.

        Raises:
            DevopsError: One of them could not be asked whole.
        """
        (queued, orphans), instances = await together(self.api.requests(), self.api.instances())
        return [*queued, *instances], orphans

    async def all_of(self, name: str) -> list[TpuRequest]:
        """Every request of that name, those that live first."""
        requests, _ = await self.world()
        found = [item for item in requests if item.name == name]
        return sorted(found, key=lambda item: (not item.live, -item.created_at))

    async def find(self, name: str, zone: str | None = None) -> TpuRequest:
        """The request that a name means: `NAME`, or `NAME@ZONE`.

        Args:
            name: The deployment.
            zone: Where it is; None looks everywhere.

        Raises:
            NotFoundError: There is none.
            InvalidInputError: Several live.
        """
        plain, _, said = name.partition("@")
        where = zone or said or None
        found = [item for item in await self.all_of(plain) if where in (None, item.zone)]
        live = [item for item in found if item.live]
        if len(live) > 1 or (not live and len(found) > 1):
            several = live or found
            raise InvalidInputError(
                "name",
                f"{plain} is there more than once.",
                allowed=", ".join(item.key for item in several),
            )
        if not found:
            raise self.not_here(name)
        return (live or found)[0]

    def not_here(self, name: str) -> NotFoundError:
        """The error for a deployment that is nowhere."""
        return NotFoundError(
            f"There is no deployment {name[:64]!r} on {self.target}.",
            cause="Queued resources of all zones and ct6e instances were asked.",
            next_action="Call list_deployments.",
        )

    def refuse_foreign(self, item: TpuRequest | TpuNode) -> None:
        """Refuse to change what does not carry our label.

        Raises:
            NotManagedError: It does not.
        """
        if not item.managed:
            raise NotManagedError(
                f"{self.target}/{item.name} in {item.zone} does not carry "
                f"{MANAGED_BY}={MANAGED_BY_US}, so it is only read.",
                next_action="Leave it to whoever made it; its labels say who, if anything does.",
            )

    async def ours(self, name: str) -> TpuRequest:
        """The request of that name, if it may be changed.

        Raises:
            NotFoundError: There is none.
            NotManagedError: It does not carry our label.
        """
        request = await self.find(name)
        self.refuse_foreign(request)
        return request

    def searches(self) -> dict[str, Operation]:
        """Searches that run now, by deployment."""
        return {
            operation.name: operation
            for operation in self.services.operations.all()
            if operation.kind == SEARCH
            and operation.target == self.target
            and not operation.finished
        }
