"""Plans: the list of steps that is shown is the list that is run.

A plan id is single-use, expires, and is bound to a hash of its steps and of the live state it was
made from. If the world has changed since, it is refused with the difference.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.core.answers import PlanAnswer, Price, Setting, StepView
from backends.core.errors import DevopsError, PlanError, SettingsError, StepFailedError
from backends.core.state import StateDir, new_id, now, read_json, stamp, write_json, writing

_log = logging.getLogger("vllm_devops")

Verb = Literal["deploy", "destroy", "stop_serving"]

ENDING: frozenset[Verb] = frozenset({"destroy", "stop_serving"})
"""Verbs that end what costs money: they go on where nothing can be written down."""


class Step(BaseModel):
    """One action of a plan, as a value.

    Attributes:
        title: What it does, in words.
        kind: How the backend runs it (`command`, `spawn`, `stop`, `remove`, `request`).
        argv: The exact command, for kinds that run one. Never holds a secret.
        env: Variables set for it (no secrets; those are inherited or read where they are used).
        data: What else the backend needs to run it.
        background: Whether it takes longer than a call may: the plan is then run by a worker.
        creates: Names of what exists after it.
        undo: The command or tool call that removes what it created.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    title: str
    kind: str
    argv: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    data: dict[str, Any] = Field(default_factory=dict)
    background: bool = False
    creates: tuple[str, ...] = ()
    undo: str | None = None

    def shown(self) -> str:
        """The step as a person could run it."""
        if self.argv:
            settings = [f"{key}={shlex.quote(value)}" for key, value in sorted(self.env.items())]
            return " ".join([*settings, shlex.join(self.argv)])
        facts = ", ".join(f"{key}={value}" for key, value in sorted(self.data.items()))
        return f"{self.kind} {facts}".strip()


class Plan(BaseModel):
    """What a change would do.

    Attributes:
        verb: The tool that runs it.
        target: Where.
        name: The deployment's name.
        summary: One sentence.
        spec: The request, as the backend understood it (to make the plan anew and compare).
        steps: What is run, in order.
        live: The facts about the world it depends on, by name.
        price: What it costs per hour from then on (deploy) or saves (destroy, stop).
        settings: The resolved settings, for the reader.
        keeps_billing: What goes on costing money afterwards.
        stays: What is left afterwards and costs nothing, with what removes it.
        warnings: What the reader should know first.
        notes: Choices that were made for the reader, each with its reason.
    """

    verb: Verb
    target: str
    name: str
    summary: str
    spec: dict[str, Any] = Field(default_factory=dict)
    steps: list[Step]
    live: dict[str, str] = Field(default_factory=dict)
    price: Price | None = None
    settings: list[Setting] = Field(default_factory=list)
    keeps_billing: list[str] = Field(default_factory=list)
    stays: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    def hash(self) -> str:
        """Hash of the steps and of the state they depend on."""
        content = {
            "verb": self.verb,
            "target": self.target,
            "name": self.name,
            "steps": [step.model_dump(mode="json") for step in self.steps],
            "live": self.live,
        }
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class StoredPlan(BaseModel):
    """A plan with its id, on disk."""

    plan_id: str
    plan_hash: str
    created_at: datetime
    expires_at: datetime
    plan: Plan

    def answer(self, *, document: str | None = None) -> PlanAnswer:
        """As the agent sees it."""
        plan = self.plan
        return PlanAnswer(
            summary=f"Plan only, nothing done yet: {plan.summary}",
            verb=plan.verb,
            target=plan.target,
            name=plan.name,
            plan_id=self.plan_id,
            plan_hash=self.plan_hash,
            expires_at=stamp(self.expires_at),
            price=plan.price,
            settings=plan.settings,
            steps=[
                StepView(
                    title=step.title,
                    command=step.shown(),
                    creates=list(step.creates),
                    undo=step.undo,
                )
                for step in plan.steps
            ],
            depends_on=plan.live,
            keeps_billing=plan.keeps_billing,
            stays=plan.stays,
            warnings=plan.warnings,
            notes=plan.notes,
            document=document,
            next_steps=[
                f"To run exactly this: {plan.verb}(target={plan.target!r}, name={plan.name!r}, "
                f"plan_id={self.plan_id!r})"
            ],
        )


class PlanBook:
    """Plans on disk: kept, found again, used once.

    Args:
        state: The state directory.
        ttl_minutes: How long an id can be used.
    """

    def __init__(self, state: StateDir, ttl_minutes: float) -> None:
        self._state = state
        self._ttl = timedelta(minutes=ttl_minutes)
        # Plans that end something and could not be written, and ids whose mark could not be.
        self._unwritten: dict[str, StoredPlan] = {}
        self._used: set[str] = set()

    def keep(self, plan: Plan) -> StoredPlan:
        """Write `plan` down under a new id.

        A plan that ends something is kept in memory where it cannot be written: a full disk must
        not keep a bill alive. It then says so, and is forgotten with this server.

        Raises:
            SettingsError: A deployment's plan cannot be written.
        """
        created = now()
        stored = StoredPlan(
            plan_id=new_id("plan"),
            plan_hash=plan.hash(),
            created_at=created,
            expires_at=created + self._ttl,
            plan=plan,
        )
        try:
            with writing(self._state.plans):
                self._sweep(created)
            write_json(self._path(stored.plan_id), stored.model_dump(mode="json"))
        except SettingsError as error:
            if plan.verb not in ENDING:
                raise
            note = f"This plan is known to this server only: {error.message} {error.words}"
            plan = plan.model_copy(update={"warnings": [*plan.warnings, note]})
            stored = stored.model_copy(update={"plan": plan})
            self._unwritten[stored.plan_id] = stored
        return stored

    def find(self, plan_id: str, verb: Verb, target: str, name: str | None) -> StoredPlan:
        """The plan of that id, if it can still be used for this call. Does not use it up.

        Raises:
            PlanError: Unknown, damaged, used, expired, or made for something else.
        """
        again = f"Call {verb} without plan_id for a new plan."
        path = self._path(plan_id)
        stored = self._unwritten.get(plan_id) or self._read(plan_id, path, again)
        if plan_id in self._used or path.with_suffix(".used").exists():
            raise PlanError(
                "used",
                f"Plan {plan_id} was already used; an id works once.",
                next_action=f"See what it did with list_deployments. {again}",
            )
        if now() >= stored.expires_at:
            raise PlanError(
                "expired",
                f"Plan {plan_id} expired at {stamp(stored.expires_at)}.",
                next_action=again,
            )
        plan = stored.plan
        if (plan.verb, plan.target) != (verb, target) or name not in (None, plan.name):
            raise PlanError(
                "mismatch",
                f"Plan {plan_id} is for {plan.verb} of {plan.target}/{plan.name}, "
                f"not for {verb} of {target}/{name or '(no name)'}.",
                next_action=again,
            )
        return stored

    def use(self, stored: StoredPlan, fresh: Plan) -> None:
        """Use the id up, if the world is still as it was.

        Args:
            stored: What `find` returned.
            fresh: The same request planned again just now.

        Raises:
            PlanError: The state or the steps have changed, or the id was used meanwhile.
        """
        again = f"Call {stored.plan.verb} without plan_id for a new plan."
        difference = differences(stored.plan, fresh)
        if difference:
            raise PlanError(
                "stale",
                f"Plan {stored.plan_id} no longer fits: {'; '.join(difference)}. Nothing was done.",
                cause="Something changed since the plan was made.",
                next_action=again,
            )
        used = PlanError("used", f"Plan {stored.plan_id} was already used; an id works once.")
        if stored.plan_id in self._used:
            raise used
        marker = self._path(stored.plan_id).with_suffix(".used")
        try:
            with writing(marker):
                try:
                    os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                except FileExistsError:
                    raise used from None
        except SettingsError:
            if stored.plan.verb not in ENDING:
                raise
        self._used.add(stored.plan_id)

    def _read(self, plan_id: str, path: Path, again: str) -> StoredPlan:
        raw = read_json(path) if path.parent == self._state.plans else None
        if raw is None:
            raise PlanError("unknown", f"There is no plan {plan_id[:64]!r}.", next_action=again)
        try:
            return StoredPlan.model_validate(raw)
        except ValidationError as error:
            raise PlanError(
                "damaged",
                f"Plan {plan_id} cannot be read: {path} is not as it was written.",
                next_action=again,
            ) from error

    def _path(self, plan_id: str) -> Path:
        return self._state.plans / f"{plan_id}.json"

    def _sweep(self, moment: datetime) -> None:
        """Forget plans that expired more than a day ago."""
        if not self._state.plans.is_dir():
            return
        limit = (moment - timedelta(days=1)).timestamp()
        for path in self._state.plans.glob("plan-*"):
            try:
                if path.is_file() and path.stat().st_mtime < limit:
                    path.unlink()
            except FileNotFoundError:
                continue


def differences(old: Plan, new: Plan) -> list[str]:
    """What changed between two plans of the same request, in words."""
    found = [
        f"{key} was {old.live.get(key, 'absent')!r} and is {new.live.get(key, 'absent')!r}"
        for key in sorted(old.live.keys() | new.live.keys())
        if old.live.get(key) != new.live.get(key)
    ]
    if not found and old.hash() != new.hash():
        before, after = ([step.shown() for step in plan.steps] for plan in (old, new))
        changed = [line for line in after if line not in before] or [
            f"(no longer) {line}" for line in before if line not in after
        ]
        found.append("the steps would now be different: " + " | ".join(changed or ["order"]))
    return found


async def run_steps(
    plan: Plan,
    run: Callable[[Step], Awaitable[str]],
    on_step: Callable[[int, Step], Awaitable[None]] | None = None,
) -> list[str]:
    """Run the steps of `plan` in order; returns what each did, in words.

    Raises:
        StepFailedError: A step failed: says what the earlier ones did and made, and how to undo it.
    """
    done: list[str] = []
    made: list[str] = []
    undo: list[str] = []
    for index, step in enumerate(plan.steps):
        if on_step is not None:
            await on_step(index, step)
        try:
            done.append(await run(step))
        except Exception as error:
            # Whatever it is: what the steps before it did must not go unmentioned.
            known = error if isinstance(error, DevopsError) else _unforeseen(error)
            left = getattr(error, "made", [])
            raise StepFailedError(
                f"Step {index + 1} of {len(plan.steps)} ({step.title}) failed: {known.message}",
                done=done,
                made=[*made, *left],
                # Last made first: a role cannot be deleted before its policies are.
                undo=[*getattr(error, "undo", []), *reversed(undo)],
                words=known.words,
                cause=known.cause,
                next_action=known.next_action
                or f"Call get_status(target={plan.target!r}, name={plan.name!r}).",
                code=known.code,
            ) from error
        made += step.creates
        if step.undo:
            undo.append(step.undo)
    return done


def _unforeseen(error: Exception) -> DevopsError:
    _log.error("a step failed in an unforeseen way", exc_info=error)
    return DevopsError(type(error).__name__, words=str(error))


def _words(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe(settings: Mapping[str, object], meanings: Mapping[str, str]) -> list[Setting]:
    """Settings as the plan shows them: set values only, with their meaning."""
    return [
        Setting(name=key, value=_words(value), meaning=meanings.get(key))
        for key, value in settings.items()
        if value is not None
    ]


def said(spec: BaseModel) -> dict[str, object]:
    """A request's settings that say something: not those that are off or empty, nor its name."""
    values = spec.model_dump(exclude_none=True, exclude={"name"})
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in values.items()
        if value is not False and value != []
    }
