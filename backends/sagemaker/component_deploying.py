"""Plans of deployments that scale to zero: what is there is gone on from, or replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.core.errors import ConflictError, DevopsError, NotFoundError
from backends.core.owned import together
from backends.core.plans import Step
from backends.core.problems import or_problem
from backends.knowledge.sagemaker import PROFILE
from backends.knowledge.sagemaker_components import ALARM_USD_PER_MONTH, SCALE_IN_S
from backends.sagemaker.component_scaling import refuse_busy
from backends.sagemaker.component_state import idle_words, wake_s
from backends.sagemaker.component_steps import create_steps, hosted, replace_steps
from backends.sagemaker.endpoints import Deployed
from backends.sagemaker.spec import SageMakerSpec
from backends.sagemaker.world import Place, World

if TYPE_CHECKING:
    from backends.core.answers import Price
    from backends.sagemaker.looking import SageMakerLooking


def check_kind(target: SageMakerLooking, spec: SageMakerSpec, found: Deployed | None) -> None:
    """Refuse to make one kind of endpoint of the other: SageMaker cannot.

    Raises:
        ConflictError: Says how to come to the other kind.
    """
    if found is None or found.endpoint is None or found.config is None:
        return
    again = (
        f"{target.call('destroy', spec.name)}, then plan_deployment with it; or another name, to "
        "have both."
    )
    if spec.scale_to_zero and not found.of_components:
        raise ConflictError(
            f"{target.at(spec.name)} holds its model itself and cannot be turned into one that "
            "scales to zero.",
            cause="Only what is made of inference components from the beginning can have none.",
            next_action=again,
        )
    if found.of_components and not spec.scale_to_zero:
        raise ConflictError(
            f"{target.at(spec.name)} is made to scale to zero; without options.scale_to_zero=true "
            "it would have to be another endpoint.",
            next_action=f"Plan with options.scale_to_zero=true to change it; or {again}",
        )


def as_it_stands(spec: SageMakerSpec, found: Deployed) -> SageMakerSpec:
    """The request with the instances that a deployment has, where it names none."""
    variant = found.config.variants[0] if found.config and found.config.variants else None
    if variant is None:
        return spec
    scaling = variant.raw.get("ManagedInstanceScaling") or {}
    changes = {
        "instance_types": spec.instance_types or list(variant.types),
        "instances": spec.instances or int(scaling.get("MaxInstanceCount") or 1),
    }
    return spec.model_copy(update=changes)


async def plan_steps(
    target: SageMakerLooking,
    spec: SageMakerSpec,
    world: World,
    place: Place,
    found: Deployed | None,
) -> list[Step]:
    """What is missing of it, or what replaces what it hosts.

    Raises:
        ConflictError: It hosts just that, is being changed, or somebody else's component has its
            name.
    """
    what, config = hosted(spec, place.region, place.image)
    target.api.forget(place.region, what.name)
    target.api.forget(place.region, config)
    model, there, component = await together(
        or_problem(target.api.model_tags(place.region, what.name)),
        or_problem(target.api.config(place.region, config)),
        target.api.component_or_none(place.region, spec.name),
    )
    for item in (model, there):
        if isinstance(item, DevopsError) and not isinstance(item, NotFoundError):
            raise item
    model_there = not isinstance(model, DevopsError)
    if component is not None and (found is None or found.endpoint is None):
        raise ConflictError(
            f"An inference component named {spec.name} exists in {place.region} already, on the "
            f"endpoint {component.endpoint}.",
            cause="Components of a region have their names to themselves, and outlive an endpoint "
            "that was deleted before them.",
            next_action="Choose another name; or ask the person to run: aws sagemaker "
            f"delete-inference-component --inference-component-name {spec.name} --region "
            f"{place.region}",
        )
    if found is None or found.endpoint is None:
        config_there = not isinstance(there, DevopsError)
        return create_steps(spec, world, place, model_there=model_there, config_there=config_there)
    if component is not None:
        refuse_busy(target, spec.name, component)
    return replace_steps(spec, world, place, found, model_there=model_there)


def price_words(price: Price, spec: SageMakerSpec) -> Price:
    """A price that is paid while an instance runs, and not at zero."""
    basis = price.basis.replace(
        "while the endpoint exists, used or not",
        f"while instances run, at most {spec.instances}; 0 USD/h at zero",
    )
    return price.model_copy(update={"basis": basis})


def keeps_billing() -> str:
    """What goes on costing money."""
    return (
        f"Its instances: {idle_words()}; then nothing but three alarms, "
        f"{3 * ALARM_USD_PER_MONTH.value:.2f} USD a month."
    )


def warnings(replaces: bool) -> list[str]:
    """What the reader should know first."""
    said = [
        f"From zero it takes about {wake_s() / 60:.0f} minutes until it answers, and every request "
        "until then is refused, the one that wakes it included.",
        "Whether an instance is free when it is woken is not known before: without one it stays at "
        "zero.",
        "SageMaker makes no component without a copy: the first start is paid for; update_scaling("
        "instances=0) ends that at once.",
    ]
    if replaces:
        said.append(
            "Its component is deleted and made anew, since a copy takes whole GPUs: nobody is "
            f"answered for about {PROFILE.startup_s / 60:.0f} minutes, and nothing is rolled back "
            "by itself."
        )
    return said


def notes(spec: SageMakerSpec) -> list[str]:
    """Choices that were made for the reader."""
    return [
        f"After {SCALE_IN_S.value / 60:.0f} minutes without a request AWS takes the copies away, "
        "which cannot be tuned; between one and the most, about 16 requests at once are kept on "
        "each.",
        "Quota is held for the instances that exist"
        + (" of every type listed" if len(spec.instance_types) > 1 else "")
        + "; whether it is at zero too, AWS does not say.",
        "Some regions refuse endpoints without instances (MinInstanceCount 0); then the "
        "configuration's command says so, and nothing that costs has been made.",
    ]
