"""plan_deployment without a target: what serves a load cheapest, with reasons; all predicted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.core.answers import Comparison, TargetOption
from backends.core.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.app import App
    from backends.knowledge.cost import Offer
    from backends.serving.choosing import Load, Option
    from backends.verbs.deploying import Request

DEFAULT_MODEL = "google/gemma-4-E2B-it"


class AskedLoad(BaseModel):
    """The `load` of plan_deployment."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    requests_per_hour: float = Field(60, gt=0, le=1e7)
    prompt_tokens: int = Field(512, ge=1, le=1_000_000)
    output_tokens: int = Field(256, ge=1, le=100_000)
    hours_a_day: float = Field(8, gt=0, le=24)
    ttft_ms: float | None = Field(None, gt=0)
    e2e_s: float | None = Field(None, gt=0)


def parse_load(asked: Mapping[str, Any] | None) -> Load:
    """The load as asked for.

    Raises:
        InvalidInputError: An entry is unknown or out of range; names it.
    """
    from backends.serving.choosing import Load

    try:
        return Load(**AskedLoad.model_validate(asked or {}).model_dump())
    except ValidationError as error:
        item = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, item["loc"]))
        if item["type"] == "extra_forbidden":
            raise InvalidInputError(
                f"load.{where[:40]}", "is unknown.", allowed=", ".join(AskedLoad.model_fields)
            ) from None
        raise InvalidInputError(
            f"load.{where[:40]}", item["msg"].removeprefix("Value error, ") + "."
        ) from None


async def compare_targets(
    app: App,
    request: Request,
    load: Mapping[str, Any] | None,
    *,
    form: str = "plan",
    detail: bool = False,
) -> Comparison:
    """Rank every offer of every target for a checkpoint and a load, by cost a month.

    Args:
        app: The application.
        request: The arguments of plan_deployment; of these only the model has a meaning here.
        load: requests_per_hour, prompt_tokens, output_tokens, hours_a_day, ttft_ms, e2e_s.
        form: The form of a plan, which needs a target.
        detail: Every offer with all its figures and where its price is from; otherwise the
            cheapest of each target, and of the others what they cost.

    Raises:
        InvalidInputError: The load makes no sense, an argument needs a target, or nothing is known
            of the model.
    """
    from backends.knowledge.cost import offers
    from backends.serving.choosing import best_of_each, break_evens, options
    from backends.verbs.checkpoints import known_checkpoint

    _refuse_settings(request, form)
    wanted, model = parse_load(load), request.model
    try:
        checkpoint = await known_checkpoint(app, model or DEFAULT_MODEL)
    except NotFoundError as error:
        raise InvalidInputError("model", error.message, allowed=error.next_action) from error
    weights_gib = checkpoint.disk_gb.value * 1e9 / 2**30
    ranked = await asyncio.to_thread(options, checkpoint, wanted, offers(weights_gib))
    able = [item for item in ranked if item.able]
    shown = ranked if detail else best_of_each(ranked)
    items = [_row(ranked.index(item) + 1, item) for item in shown]
    asked = (
        f"{wanted.requests_per_hour:g} requests an hour of {wanted.prompt_tokens} + "
        f"{wanted.output_tokens} tokens, {wanted.hours_a_day:g} hours a day"
    )
    if able and able[0].cost is not None:
        summary = (
            f"{checkpoint.name}, {asked}: {able[0].offer.title} is cheapest, about "
            f"{able[0].cost.usd:.0f} USD a month (predicted)."
        )
    else:
        summary = f"{checkpoint.name}, {asked}: no target can serve it as asked (predicted)."
    best = next((item.offer for item in able if item.offer.target in app.targets), None)
    return Comparison(
        summary=summary,
        basis="predicted",
        model=checkpoint.name,
        load={key: value for key, value in vars_of(wanted).items() if value is not None},
        items=items if detail else [_brief(item) for item in items],
        dearer_offers=[
            f"rank {ranked.index(item) + 1}: {item.offer.title}, {item.cost.usd:.0f} USD a month"
            for item in able
            if item not in shown and item.cost is not None
        ],
        break_even=break_evens(ranked, with_cheapest=not detail),
        assumptions=[
            f"List prices{_as_of(able)}; an account's own may differ.",
            "Throughput from the roofline, 80 % of it counted on; no other users share it.",
            "One instance serves at the level shown; hours a day are one stretch.",
        ],
        warnings=[
            f"Not on offer in this server (VLLM_DEVOPS_TARGETS): {', '.join(missing)}."
            for missing in [sorted({i.offer.target for i in ranked} - set(app.targets))]
            if missing
        ],
        next_steps=([_call(best, model or DEFAULT_MODEL)] if best else [])
        + (
            []
            if detail
            else ["The same call with detail=true: every offer, where its price is from"]
        ),
    )


def _brief(item: TargetOption) -> TargetOption:
    """What is read of an offer first."""
    from backends.serving.choosing import DAY_AND_NIGHT

    kept: dict[str, Any] = {
        "place": None,
        "itl_ms": None,
        "prices": [],
        "scales_to_zero": None,  # the reasons say so
        "instances": _several(item.instances),
        "reasons": [said for said in item.reasons if not said.endswith(DAY_AND_NIGHT)],
    }
    figures = {
        name: float(f"{value:.4g}")
        for name in ("output_tokens_per_s", "ttft_ms", "usd_per_million_output_tokens")
        if (value := getattr(item, name)) is not None
    }
    return item.model_copy(update=kept | figures)


def _several(instances: int | None) -> int | None:
    return instances if instances is not None and instances > 1 else None


def _as_of(items: Sequence[Option]) -> str:
    """The days of the prices that were used."""
    from backends.knowledge.cost import OLD_DAYS, age_days

    days = sorted({part.fact.date for item in items for part in item.offer.parts if not part.live})
    if not days:
        return ""
    old = " (some are old: check them)" if age_days(days[0]) > OLD_DAYS else ""
    return f" of {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "") + old


def _call(offer: Offer, model: str) -> str:
    """The call that plans this very offer: another one of its target has another price."""
    options = f", options={dict(offer.options)!r}" if offer.options else ""
    return f"plan_deployment(target={offer.target!r}, model={model!r}{options})"


def _refuse_settings(request: Request, form: str) -> None:
    """Refuse by name what would be passed over without a word."""
    said = request.common() | ({"options": 1} if request.options else {})
    said |= {"format": form} if form != "plan" else {}
    for argument in said:
        if argument != "model":
            raise InvalidInputError(
                argument, "needs a target.", allowed="target=..., or only model and load"
            )


def vars_of(load: Load) -> dict[str, Any]:
    """A load's entries by name."""
    return {name: getattr(load, name) for name in AskedLoad.model_fields}


def _row(number: int, item: Option) -> TargetOption:
    offer, row = item.offer, item.row
    return TargetOption(
        rank=number if item.able else None,
        target=offer.target,
        variant=offer.variant or None,
        place=offer.place,
        verdict="can serve" if item.able else "cannot",
        usd_per_month=round(item.cost.usd, 2) if item.cost else None,
        usd_per_hour=round(offer.usd_per_hour * item.instances, 4),
        usd_per_million_output_tokens=round(item.usd_per_million, 3)
        if item.usd_per_million is not None
        else None,
        instances=item.instances if item.able else None,
        concurrency=row.concurrency if row else None,
        output_tokens_per_s=row.output_tokens_per_s if row else None,
        ttft_ms=row.ttft_ms if row else None,
        itl_ms=row.itl_ms if row else None,
        memory_fit=item.memory.verdict,
        start_s=offer.profile.startup_s,
        scales_to_zero=offer.scales_to_zero,
        keeps_billing=[f"{what}: {usd:.2f} USD a month" for what, usd in offer.after_destroy],
        prices=[part.words() for part in offer.parts],
        reasons=list(item.reasons),
    )
