"""Plan, deploy, wait, start, stop, destroy: the plan is the deed; nothing happens by accident."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from mcp.server.mcpserver import Elicit, ElicitationResult
from pydantic import BaseModel, Field

from backends.base import (
    CanDeploy,
    CanDestroy,
    CanStart,
    CanStop,
    Progress,
    RunsPlans,
    parse_end,
)
from backends.core.answers import Changed, PlanAnswer, Waited
from backends.core.errors import (
    BudgetError,
    ConfirmationError,
    DevopsError,
    InvalidInputError,
    NotFoundError,
    PlanError,
    SettingsError,
)
from backends.core.operations import Operation
from backends.core.owned import together
from backends.core.plans import ENDING, Plan, StoredPlan, Verb, run_steps
from backends.core.settings import Confirm, as_environment
from backends.core.tools import app_of, current_call, current_client
from backends.core.words import in_words, plural
from backends.verbs import predicting
from backends.verbs.comparing import parse_load
from backends.verbs.observing import explaining_absence, gather_deployments, still_at_it

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.mcpserver import Context

    from backends.app import App
    from backends.core.answers import Price, State

DEFAULT_NAME = "gemma4"

# After a deployment was accepted, its state is good to know and no more.
_LOOK_S = 6.0

_log = logging.getLogger("vllm_devops")


class Approval(BaseModel):
    """A person's answer to whether something destructive may run."""

    # Strict: "yes", "on" or 1 is no answer of the form that was asked for.
    approve: bool = Field(strict=True, description="Yes, do it.")


class Request(BaseModel):
    """What plan_deployment and deploy were asked for; None is "not said"."""

    name: str | None = None
    model: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    def common(self) -> dict[str, Any]:
        """The arguments every target has, as far as they were said."""
        return self.model_dump(exclude_none=True, exclude={"options"})


async def plan_deploy(
    app: App,
    target: str,
    request: Request,
    *,
    form: str = "plan",
    load: Mapping[str, Any] | None = None,
    detail: bool = False,
) -> PlanAnswer:
    """Plan a deployment and keep the plan under a new id. Changes nothing.

    Args:
        app: The application.
        target: Where.
        request: What was asked for.
        form: "plan"; "shell" adds the steps as a script; others are a target's own.
        load: What will be asked of it, for predicted speed and cost.
        detail: Add what each setting means, as get_help(topic="options") has it too.

    Raises:
        BudgetError: It would cost more than the operator allows.
        InvalidInputError: A setting is wrong; names it.
        ConflictError: The name is taken.
    """
    wanted = parse_load(load)
    backend = cast("CanDeploy", app.backend(target, "deploy"))
    common = {"name": DEFAULT_NAME} | request.common()
    plan = await backend.plan_deploy(backend.parse_spec(common, request.options))
    await check_budget(app, plan.price, f"{target}/{plan.name}")
    plan = _with_end(backend, plan)
    answer = app.plans.keep(plan).answer(document=backend.document(plan, form))
    answer.predicted, answer.cost = await predicting.of_plan(backend, plan, wanted)
    if not detail:
        answer.settings = [item.model_copy(update={"meaning": None}) for item in answer.settings]
    return answer


def _with_end(backend: CanDeploy, plan: Plan) -> Plan:
    """Say what becomes of `ttl_hours`."""
    hours = plan.spec.get("ttl_hours")
    if not hours:
        return plan
    if backend.ttl and backend.ttl != "shown":
        note = f"ttl_hours={hours:g}: the cloud itself ends it then (options.{backend.ttl})."
        return plan.model_copy(update={"notes": [*plan.notes, note]})
    shown = "list_deployments and get_status say when it is over, but " if backend.ttl else ""
    warning = f"ttl_hours={hours:g}: {shown}nothing ends it by itself on {plan.target}; destroy it."
    return plan.model_copy(update={"warnings": [*plan.warnings, warning]})


async def deploy(app: App, target: str, request: Request, plan_id: str) -> Changed:
    """Run a deployment plan.

    Raises:
        PlanError: The id cannot be used, or an argument says something else than the plan.
        StepFailedError: A step failed; names what was made.
    """
    backend = cast("CanDeploy", app.backend(target, "deploy"))
    stored = app.plans.find(plan_id, "deploy", target, request.name)
    said = request.common() | request.options
    other = [
        key for key, value in said.items() if key != "name" and stored.plan.spec.get(key) != value
    ]
    if other:
        raise PlanError(
            "mismatch",
            f"Plan {plan_id} was made with other values of: {', '.join(sorted(other))}.",
            next_action="Call deploy with plan_id alone, or plan again with these values.",
        )
    request_again = type(backend).Spec.model_validate(stored.plan.spec)
    fresh = await _again(stored, backend.plan_deploy(request_again))
    await check_budget(app, fresh.price, f"{target}/{fresh.name}")
    return await _run(app, backend, stored, fresh)


async def plan_end(
    app: App, verb: Verb, target: str, name: str, options: Mapping[str, Any] | None
) -> PlanAnswer:
    """Plan stopping or destroying a deployment. Changes nothing.

    Raises:
        InvalidInputError: An option is unknown or wrong; names it.
    """
    plan = await _ending(app.backend(target, verb), verb, name, options or {})
    return await _kept(app, plan, options or {})


async def _ending(backend: Any, verb: Verb, name: str, options: Mapping[str, Any]) -> Plan:  # noqa: ANN401 (CanStop or CanDestroy)
    if verb == "stop_serving":
        stops = cast("CanStop", backend)
        return await stops.plan_stop_as(name, parse_end(stops.target, stops.StopOptions, options))
    ends = cast("CanDestroy", backend)
    parsed = parse_end(ends.target, ends.DestroyOptions, options)
    try:
        return await ends.plan_destroy_as(name, parsed)
    except NotFoundError:
        # A deploy that was killed may have left what costs nothing.
        left = await ends.plan_leftovers(name)
        if left is None:
            raise
        return left


async def _kept(app: App, plan: Plan, options: Mapping[str, Any]) -> PlanAnswer:
    """Keep a plan that ends something, with what is at work on it among the warnings."""
    cut_off = [
        f"{operation.kind} {operation.id} is running on it and would be cancelled."
        for operation in await _at_work_on(app, plan)
    ]
    plan = plan.model_copy(
        update={
            "warnings": [*cut_off, *plan.warnings],
            "spec": plan.spec | ({"options": dict(options)} if options else {}),
        }
    )
    return app.plans.keep(plan).answer()


async def _at_work_on(app: App, plan: Plan) -> list[Operation]:
    return [
        operation
        for operation in await asyncio.to_thread(app.operations.all)
        if not operation.finished and (operation.target, operation.name) == (plan.target, plan.name)
    ]


async def _cancel_work_on(app: App, plan: Plan) -> list[str]:
    """Cancel what is at work on a deployment that ends; returns what was done, in words.

    Left to itself a benchmark would go on to measure how a server that is gone fails.
    """
    ended = await together(
        *(
            asyncio.to_thread(app.operations.cancel, operation.id)
            for operation in await _at_work_on(app, plan)
        )
    )
    return [f"{operation.kind} {operation.id}: {operation.state}" for operation in ended]


async def run_destructive(
    ctx: Context[Any, Any],
    verb: Verb,
    target: str,
    name: str,
    plan_id: str,
    approval: ElicitationResult[Approval],
    options: Mapping[str, Any] | None = None,
) -> Changed:
    """Run a stop or destroy plan that a person agreed to.

    Raises:
        PlanError: The id cannot be used, or the options say something else than the plan.
        ConfirmationError: No person agreed.
        StepFailedError: A step failed.
    """
    app: App = app_of(ctx)
    backend = app.backend(target, verb)
    stored = app.plans.find(plan_id, verb, target, name)
    planned: dict[str, Any] = stored.plan.spec.get("options", {})
    if options and dict(options) != planned:
        raise PlanError(
            "mismatch",
            f"Plan {plan_id} was made with other options.",
            next_action=f"Call {verb} with plan_id alone, or plan again with these options.",
        )
    fresh = await _again(stored, _ending(backend, verb, name, planned))
    _check_agreed(ctx, app, verb, approval)
    cancelled = await _cancel_work_on(app, fresh)
    changed = await _run(app, cast("RunsPlans", backend), stored, fresh)
    return changed.model_copy(update={"done": [*cancelled, *changed.done]})


async def question(
    ctx: Context[Any, Any], verb: Verb, target: str, name: str, plan_id: str | None
) -> Approval | Elicit[Approval]:
    """What the person is asked before `run_destructive`; nothing while only planning."""
    app: App = app_of(ctx)
    if plan_id is None or not _can_ask(ctx):
        return Approval(approve=False)
    if app.settings.confirm is Confirm.PLAN:
        return Approval(approve=True)
    try:
        stored = app.plans.find(plan_id, verb, target, name)
    except DevopsError:
        # The tool itself reports it; a person is not asked about a plan that cannot run.
        return Approval(approve=False)
    plan = stored.plan
    lines = [f"{verb.replace('_', ' ').capitalize()} {plan.target}/{plan.name}?", plan.summary]
    lines += [f"{index}. {step.title}" for index, step in enumerate(plan.steps, 1)]
    lines += plan.warnings
    lines += [f"Goes on billing: {item}" for item in plan.keeps_billing]
    lines += [f"Stays and costs nothing: {item}" for item in plan.stays]
    return Elicit("\n".join(lines), Approval)


async def start_serving(app: App, target: str, name: str, *, restart: bool) -> Changed:
    """Start the server of a deployment again.

    Raises:
        BudgetError: It would cost more than the operator allows.
    """
    backend = cast("CanStart", app.backend(target, "start_serving"))
    status = await backend.status(name)
    if not status.simulated and status.state in {"stopped", "failed", "scaled_to_zero"}:
        await check_budget(app, await backend.price(name), f"{target}/{name}")
    return await backend.start(name, restart=restart)


async def wait_until_ready(
    app: App, target: str, name: str | None, timeout_s: float, progress: Progress
) -> Waited:
    """Watch a deployment for at most `timeout_s`, reporting progress."""
    backend = app.backend(target, "wait_until_ready")
    name = await backend.resolve(name)
    async with explaining_absence(app, target, name):
        status, waited = await backend.watch(name, timeout_s, progress)
    return Waited(**status.model_dump(), waited_s=waited)


async def check_budget(app: App, price: Price | None, what: str) -> None:
    """Refuse what would take the hourly cost over the operator's limit, all targets counted.

    Raises:
        BudgetError: It would, or that cannot be told.
    """
    limit = app.settings.max_usd_per_hour
    if limit is None:
        return
    if price is None or price.usd_per_hour is None:
        raise BudgetError(
            f"{what} has no known price, and a budget of {limit} USD/h is set.",
            next_action="The operator may raise or unset VLLM_DEVOPS_MAX_USD_PER_HOUR.",
        )
    found = await gather_deployments(app, app.targets)
    if found.silent:
        raise BudgetError(
            f"A budget of {limit} USD/h is set, and what already runs is not known: "
            + "; ".join(f"{item.target}: {item.error}" for item in found.silent),
            next_action="Mend that first, or call get_help(topic='doctor').",
        )
    now = sum(item.usd_per_hour or 0 for item in found.items)
    if now + price.usd_per_hour > limit:
        raise BudgetError(
            f"{what} costs {price.usd_per_hour} USD/h; with the {now} USD/h that runs already it "
            f"would pass the budget of {limit} USD/h.",
            cause="VLLM_DEVOPS_MAX_USD_PER_HOUR is the operator's limit.",
            next_action="Destroy something first (list_deployments), or choose something cheaper.",
        )


async def _again(stored: StoredPlan, planning: Any) -> Plan:  # noqa: ANN401 (an awaitable Plan)
    """The same request planned now. A refusal means that the world has changed."""
    try:
        return cast("Plan", await planning)
    except InvalidInputError:
        raise
    except DevopsError as error:
        raise PlanError(
            "stale",
            f"Plan {stored.plan_id} no longer fits: {error.message} Nothing was done.",
            cause="Something changed since the plan was made.",
            next_action=error.next_action or "Plan again.",
        ) from error


async def _run(app: App, backend: RunsPlans, stored: StoredPlan, fresh: Plan) -> Changed:
    plan = stored.plan
    app.plans.use(stored, fresh)
    try:
        app.audit.record(
            event="plan",
            call_id=current_call.get(),
            tool=plan.verb,
            client=current_client.get(),
            arguments={"target": plan.target, "name": plan.name, "plan_id": stored.plan_id},
            outcome="steps follow",
            plan_hash=stored.plan_hash,
            steps=" ; ".join(step.shown() for step in plan.steps),
        )
    except SettingsError as error:
        if plan.verb not in ENDING:
            raise
        # The answer says so, for the line of the call itself could not be written either.
        _log.error("plan %s is not in the audit log: %s", stored.plan_id, error.words)
    if any(step.background for step in plan.steps):
        return await _run_in_background(app, stored)
    done = await run_steps(plan, lambda step: backend.run_step(plan, step))
    where = f"{plan.target}/{plan.name}"
    app.usage.forget(where)
    call = f"(target={plan.target!r}, name={plan.name!r})"
    if plan.verb == "deploy":
        state, url, unknown = await _state_after(backend, plan.name)
        return Changed(
            summary=f"{where} was accepted; how it is cannot be told at this moment."
            if unknown
            else f"{where} was accepted and is {in_words(state)}.",
            target=plan.target,
            name=plan.name,
            state=state,
            url=url,
            plan_hash=stored.plan_hash,
            done=done,
            usd_per_hour=plan.price.usd_per_hour if plan.price else None,
            warnings=[*unknown, *plan.warnings],
            next_steps=[f"wait_until_ready{call}"],
        )
    if any(step.kind == "later" for step in plan.steps):
        return Changed(
            summary=f"{where} is there still; an operation goes on and ends it as soon as it can.",
            target=plan.target,
            name=plan.name,
            state="stopping",
            plan_hash=stored.plan_hash,
            done=done,
            keeps_billing=plan.keeps_billing,
            stays=plan.stays,
            next_steps=[f"get_status{call}"],
        )
    return await _after_the_end(backend, plan, stored.plan_hash, done)


async def _after_the_end(
    backend: RunsPlans, plan: Plan, plan_hash: str, done: Sequence[str]
) -> Changed:
    """The answer of a stop or destroy: what is accepted is not yet over everywhere."""
    where = f"{plan.target}/{plan.name}"
    destroyed = plan.verb == "destroy"
    over = Changed(
        summary=f"{where} was {'destroyed' if destroyed else 'stopped'}.",
        target=plan.target,
        name=plan.name,
        state="stopped",
        plan_hash=plan_hash,
        done=list(done),
        keeps_billing=plan.keeps_billing,
        stays=plan.stays,
        next_steps=["list_deployments()"]
        if destroyed
        else [f"start_serving(target={plan.target!r}, name={plan.name!r})"],
    )
    try:
        async with asyncio.timeout(_LOOK_S):
            status = await backend.status(plan.name)
    except NotFoundError:
        return over
    except (TimeoutError, DevopsError) as error:
        why = error.message if isinstance(error, DevopsError) else "no answer in time"
        return over.model_copy(
            update={
                "summary": f"{where}: every step was accepted; whether it is over cannot be told "
                "at this moment.",
                "state": "unknown",
                "warnings": [f"Its status: {why}"],
                "next_steps": [backend.call("get_status", plan.name)],
            }
        )
    if status.state != "stopping":
        return over
    return over.model_copy(
        update={
            "summary": f"What was asked for is accepted and goes on: {status.summary}",
            "state": status.state,
            "usd_per_hour": status.usd_per_hour,
            "next_steps": status.next_steps,
        }
    )


async def _run_in_background(app: App, stored: StoredPlan) -> Changed:
    """Hand a plan with long steps over to a worker, which runs all of them.

    Raises:
        ConflictError: Another one is being run for the same deployment.
    """
    plan = stored.plan
    for other in await _at_work_on(app, plan):
        if other.kind == plan.verb:
            raise still_at_it(other)
    operation = await asyncio.to_thread(
        app.operations.start,
        plan.verb,
        plan.target,
        plan.name,
        {"plan": plan.model_dump(mode="json")},
        as_environment(app.settings),
    )
    long = next(step for step in plan.steps if step.background)
    call = f"(target={plan.target!r}, name={plan.name!r})"
    return Changed(
        summary=f"{plan.target}/{plan.name} is being deployed in "
        f"{plural(len(plan.steps), 'step')}, one of which takes minutes: {long.title}.",
        target=plan.target,
        name=plan.name,
        state="creating",
        plan_hash=stored.plan_hash,
        operation_id=operation.id,
        usd_per_hour=plan.price.usd_per_hour if plan.price else None,
        warnings=plan.warnings,
        next_steps=[
            f"get_operation(operation_id={operation.id!r}, wait_s=40)",
            f"wait_until_ready{call}",
        ],
    )


async def _state_after(backend: RunsPlans, name: str) -> tuple[State, str | None, list[str]]:
    """How it is after it was accepted. That this cannot be told is no failure of the deployment."""
    try:
        async with asyncio.timeout(_LOOK_S):
            status = await backend.status(name)
    except TimeoutError:
        return "unknown", None, [f"Its status was not answered within {_LOOK_S:.0f} s."]
    except DevopsError as error:
        return "unknown", None, [f"Its status: {error.code}: {error.message}"]
    return status.state, status.url, []


def _can_ask(ctx: Context[Any, Any]) -> bool:
    capabilities = ctx.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    # A bare `elicitation: {}` is the form kind; a client may offer url alone, which cannot ask.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _check_agreed(
    ctx: Context[Any, Any], app: App, verb: Verb, approval: ElicitationResult[Approval]
) -> None:
    if app.settings.confirm is Confirm.PLAN:
        return
    if not _can_ask(ctx):
        raise ConfirmationError(
            f"{verb} needs a person's yes, and this client cannot ask one. Nothing was done.",
            next_action="The operator may set VLLM_DEVOPS_CONFIRM=plan, so that the plan id is "
            "enough; or use a client that supports elicitation.",
        )
    if approval.action != "accept" or not approval.data.approve:
        raise ConfirmationError(
            f"The person did not agree to {verb} (answer: {approval.action}). Nothing was done.",
            next_action="Ask the person what they want instead. The plan id still works.",
        )


def parse_request(
    name: str | None,
    model: str | None,
    max_model_len: int | None,
    max_num_seqs: int | None,
    options: dict[str, Any] | None,
) -> Request:
    """The arguments of plan_deployment and deploy as one value.

    Raises:
        InvalidInputError: An option is an empty text; names it.
    """
    for option, value in (options or {}).items():
        if value == "":
            raise InvalidInputError(
                f"options.{option[:40]}",
                "is an empty text, which says nothing.",
                next_action="Leave it out for the default, or give a value.",
            )
    return Request(
        name=name,
        model=model,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        options=options or {},
    )
