"""Who uses what runs: last requests, what it has cost, what could be saved, and the idle rule."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from backends.core.answers import Saving
from backends.core.errors import DevopsError
from backends.core.owned import together
from backends.core.state import now, stamp

if TYPE_CHECKING:
    from backends.app import App
    from backends.core.answers import Deployment

_ASK_S = 8.0
_MOST_ASKED = 20
"""Logs that are read for one list: a project may read them 60 times a minute."""
_HOUR_S = 3600.0
_LOOKED_BACK_H = 24.0


async def add_usage(
    app: App, items: Sequence[Deployment], target: str | None = None
) -> list[Saving]:
    """Fill in last requests and cost since the start; say what could be saved.

    Args:
        app: The application.
        items: All that was found; filled in here.
        target: The only target that was looked at; what was seen of others before still holds.
    """
    running = [item for item in items if item.usd_per_hour]
    await together(*(_ask(app, item) for item in running[:_MOST_ASKED]))
    idle_s = app.settings.idle_minutes * 60
    savings: list[Saving] = []
    others = [said for said in app.usage.idle if not said.startswith(f"{target}/")]
    app.usage.looked_at, app.usage.idle = time.monotonic(), others if target else []
    for item in items:
        late_h = hours_since(item.ends_at)
        if late_h is not None and late_h > 0:
            item.overdue_h = round(late_h, 2)
    for item in running:
        _since_start(item)
        why = _why_save(item, idle_s)
        if not why:
            continue
        savings.append(
            Saving(
                target=item.target,
                name=item.name,
                usd_per_hour=float(item.usd_per_hour or 0),
                why=why,
                call=_ending(item),
            )
        )
        app.usage.idle.append(f"{item.target}/{item.name}, {item.usd_per_hour:g} USD/h: {why}")
    return sorted(savings, key=lambda saving: -saving.usd_per_hour)


def _ending(item: Deployment) -> str:
    if not item.managed:
        return "Ask the person: it was not made by this server."
    said = json.dumps(item.end_options).replace('"', "'")
    options = f", options={said}" if item.end_options else ""
    return f"destroy(target={item.target!r}, name={item.name!r}{options})"


async def _ask(app: App, item: Deployment) -> None:
    """When the deployment last served a request, as far as its target knows."""
    try:
        async with asyncio.timeout(_ASK_S):
            last = await app.backends.get(item.target).last_request_at(item.name)
    except (TimeoutError, DevopsError):
        return  # absent means unknown
    if last is None:
        return
    if last <= 0:
        age_h = hours_since(item.created_at)
        item.no_request_for_h = round(min(_LOOKED_BACK_H, age_h or _LOOKED_BACK_H), 2)
    else:
        item.last_request_at = stamp(datetime.fromtimestamp(last, UTC))
        item.no_request_for_h = round(max(0.0, time.time() - last) / _HOUR_S, 2)


def _since_start(item: Deployment) -> None:
    """What it has cost at most: its present rate from its start on."""
    age_h = hours_since(item.created_at)
    if age_h is not None and item.usd_per_hour:
        item.usd_since_start_at_most = round(age_h * item.usd_per_hour, 2)


def _why_save(item: Deployment, idle_s: float) -> str:
    if item.overdue_h is not None:
        return f"its time (ttl_hours) was over {item.overdue_h:.1f} h ago"
    if item.state == "failed":
        return "it has failed and is still paid for"
    if item.note and "orphan" in item.note:
        return "nothing that is deployed owns it"
    if item.state == "stopped":
        return "it is stopped, and what is left of it is paid for"
    quiet_h = item.no_request_for_h
    age_h = hours_since(item.created_at)
    young = age_h is not None and age_h * _HOUR_S < idle_s
    if idle_s and quiet_h is not None and quiet_h * _HOUR_S >= idle_s and not young:
        least = "at least " if item.last_request_at is None else ""
        return f"no request for {least}{quiet_h:.1f} h"
    return ""


def overdue(items: Sequence[Deployment]) -> list[Deployment]:
    """What was to be gone by now, the longest overdue first."""
    late = [item for item in items if item.overdue_h is not None]
    return sorted(late, key=lambda item: -(item.overdue_h or 0))


def say_overdue(target: str, name: str, late_h: float, *, managed: bool) -> tuple[str, str]:
    """A warning that its time is over, and the call that ends it.

    Nothing is deleted in the background: a person agrees to every deletion.
    """
    call = (
        f"destroy(target={target!r}, name={name!r})"
        if managed
        else "Ask the person: it was not made by this server."
    )
    warning = (
        f"OVERDUE: {target}/{name} was wanted until {late_h:.1f} h ago (ttl_hours), and nothing "
        f"ends it by itself. Ask the person, then {call}"
        if managed
        else f"OVERDUE: {target}/{name} was wanted until {late_h:.1f} h ago (ttl_hours)."
    )
    return warning, call


def hours_since(moment: str | None) -> float | None:
    """Hours since a moment, negative before it; None where it is not known."""
    if not moment:
        return None
    try:
        then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (now() - then).total_seconds() / _HOUR_S
