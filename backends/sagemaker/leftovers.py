"""What a deploy that was killed, or a destroy that kept the role, left: it costs nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.core.answers import Price
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together
from backends.core.plans import Plan
from backends.sagemaker import commands
from backends.sagemaker.destroying import deletion, role_deletions
from backends.sagemaker.world import role_of

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking


@dataclass
class Left:
    """What is left of one name that no deployment uses.

    Attributes:
        role: Its execution role's name; empty if it has none.
        models: Region and name of its models.
    """

    role: str = ""
    models: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        """In words."""
        parts = [f"the role {self.role}"] if self.role else []
        return " and ".join([*parts, *(f"the model {name} in {at}" for at, name in self.models)])


async def all_left(target: SageMakerLooking, names: Collection[str]) -> dict[str, str]:
    """By name, what is left of deployments that are no more.

    Args:
        target: The target.
        names: Those that are deployed, running or stopped.

    Raises:
        DevopsError: Roles or models could not be asked.
    """
    roles, *models = await together(
        _roles(target, names), *(target.api.models_of_all(region) for region in target.regions())
    )
    found = {name: Left(role) for name, role in roles.items()}
    for region, owned in zip(target.regions(), models, strict=True):
        for model, name in owned.items():
            if name not in names:
                found.setdefault(name, Left()).models.append((region, model))
    return {name: str(left) for name, left in sorted(found.items())}


async def _roles(target: SageMakerLooking, names: Collection[str]) -> dict[str, str]:
    """Our execution roles that nobody runs as, by the name of the deployment."""
    region = target.home()
    prefix = commands.role_name("")
    listed = await target.aws.items("iam", "list_roles", "Roles", region)
    named = {
        str(item["RoleName"]).removeprefix(prefix): str(item["RoleName"])
        for item in listed
        if str(item["RoleName"]).startswith(prefix)
    }
    # The list has no tags: a role is ours by its tag, not by its name.
    kept = {name: role for name, role in named.items() if name not in names}
    roles = await together(*(role_of(target.aws, region, role) for role in kept.values()))
    return {
        name: role
        for (name, role), found in zip(kept.items(), roles, strict=True)
        if found is not None and found.ours
    }


async def plan_left(target: SageMakerLooking, name: str) -> Plan | None:
    """Delete what is left of a name that nothing is deployed under; None: nothing is.

    Raises:
        DevopsError: Roles or models could not be asked.
    """
    region = target.home()
    role_steps, _ = await role_deletions(target, name, region, wanted=True)
    models = await together(
        *(target.api.models_of(place, name) for place in target.regions()),
    )
    steps = [
        deletion(
            f"Delete the model {model} in {place}",
            commands.delete_model(place, model),
            "no model",
            model,
            place,
        )
        for place, found in zip(target.regions(), models, strict=True)
        for model in found
    ]
    steps += role_steps
    if not steps:
        return None
    return Plan(
        verb="destroy",
        target=target.target,
        name=name,
        summary=f"delete what is left of {target.at(name)}, which nothing uses; all of it carries "
        f"{MANAGED_BY}={MANAGED_BY_US}.",
        spec={"region": region},
        steps=steps,
        live={f"left of {name}": ", ".join(str(step.data["id"]) for step in steps)},
        price=Price(usd_per_hour=0, basis="it cost nothing"),
    )
