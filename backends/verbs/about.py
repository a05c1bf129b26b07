"""What this server is set to, can do, and needs: help, the target matrix, the doctor."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, SecretStr

from backends.base import (
    ABILITIES,
    Backend,
    CanDeploy,
    CanDestroy,
    CanStop,
    DeploySpec,
    EndOptions,
)
from backends.core import errors
from backends.core.answers import Check, Help
from backends.core.errors import DevopsError
from backends.core.names import VERSION, easiest
from backends.core.option_names import PLACES, PLACES_MEANING
from backends.core.owned import together
from backends.core.settings import Settings, env_file, variable_of

if TYPE_CHECKING:
    from backends.app import App

ORDER_OF_WORK = [
    "plan_deployment(model, load) without a target: which one serves it cheapest, and why",
    "plan_deployment: settings, commands, price and a plan_id; nothing is created",
    "deploy with that plan_id, then wait_until_ready until ready or failed",
    "verify_model_health, then query_model",
    "run_benchmark, get_operation to follow it, get_benchmarks for table, chart and comparison",
    "get_status, get_metrics and get_logs while it serves; list_deployments for what it costs",
    "diagnose when something fails, or with a pasted log",
    "stop_serving or destroy: once for the plan, once with its plan_id",
]


# A field of every target's deployment that has no argument of its own.
OPTION_OF_ALL = "ttl_hours"

# Fields of a benchmark that have an argument, or that the server fills in itself.
ARGUMENTS_OF_RUN_BENCHMARK = frozenset({"prompt", "prompt_tokens"})


async def help_about(app: App, topic: str, target: str | None) -> Help:
    """Answer get_help.

    Args:
        app: The application.
        topic: overview, settings, targets, options, benchmark, doctor or errors.
        target: Only this target, for targets, options and doctor.
    """
    targets = (target,) if target else app.targets
    answer = Help(summary="", version=VERSION)
    if topic == "overview":
        answer.summary = (
            f"vllm-devops {VERSION}: mode {app.mode.value}, targets {', '.join(app.targets)}."
        )
        answer.order_of_work = ORDER_OF_WORK
        answer.targets = [matrix_row(app.backends.get(name)) for name in app.targets]
        answer.next_steps = ["list_deployments()", f"plan_deployment(target={easiest(targets)!r})"]
    elif topic == "settings":
        answer.settings = settings_table(app)
        answer.summary = (
            f"Settings come from the environment, then {env_file()}, then defaults; "
            f"{len(app.problems)} wrong."
        )
    elif topic == "targets":
        answer.targets = [matrix_row(app.backends.get(name)) for name in targets]
        answer.summary = f"What {', '.join(targets)} can do, by tool."
    elif topic == "options":
        answer.options = [row for name in targets for row in options_of(app.backends.get(name))]
        answer.summary = (
            "Entries of `options` of plan_deployment and deploy; of another where it is named."
        )
    elif topic == "benchmark":
        answer.options = benchmark_options()
        answer.summary = (
            "Entries of `options` of run_benchmark. With mode=knee, concurrency (or request_rates) "
            "gives the lowest and highest load of the search; with contexts it becomes a grid."
        )
        answer.next_steps = [
            f"run_benchmark(target={targets[0]!r}, concurrency=[1, 64], options={{'mode': 'knee', "
            "'slo': ['ttft_p95<=200']})"
        ]
    elif topic == "doctor":
        answer.doctor = await doctor(app, targets)
        bad = [check.name for check in answer.doctor if check.ok is False]
        absent = [check.name for check in answer.doctor if check.state == "not set up"]
        answer.summary = (
            f"Needs attention: {', '.join(bad)}." if bad else "Everything looked at is well."
        ) + (f" Not set up, so not looked at: {', '.join(absent)}." if absent else "")
    else:
        answer.error_codes = error_codes()
        answer.summary = "Codes of tool errors; each comes with a cause and a next_action."
    return answer


def matrix_row(backend: Backend) -> dict[str, str]:
    """One line of the target matrix, from what the backend's class implements."""
    able = backend.abilities()
    row = {
        "target": backend.target,
        "what": backend.title,
        "hardware": backend.hardware,
        "can": ", ".join(tool for tool in ABILITIES if tool in able),
    }
    cannot = ", ".join(tool for tool in ABILITIES if tool not in able)
    return row | ({"cannot": cannot} if cannot else {})


def options_of(backend: Backend) -> list[dict[str, str]]:
    """The options of a target's deploy, stop_serving and destroy that are no arguments."""
    rows: list[dict[str, str]] = []
    if isinstance(backend, CanDeploy):
        if backend.places_are:
            meaning = PLACES_MEANING.format(own=backend.places_are)
            row = {"option": PLACES, "type": "str | list[str]", "meaning": meaning}
            rows.append({"target": backend.target} | row)
        rows += _rows(backend.target, backend.Spec, DeploySpec, "")
    if isinstance(backend, CanStop):
        rows += _rows(backend.target, backend.StopOptions, EndOptions, "stop_serving: ")
    if isinstance(backend, CanDestroy):
        rows += _rows(backend.target, backend.DestroyOptions, EndOptions, "destroy: ")
    return rows


def _rows(
    target: str, kind: type[BaseModel], base: type[BaseModel], tool: str
) -> list[dict[str, str]]:
    return [
        {
            "target": target,
            "option": name,
            "type": _type_words(info.annotation),
            "meaning": f"{tool}{info.description or ''}",
        }
        for name, info in kind.model_fields.items()
        if name not in base.model_fields or name == OPTION_OF_ALL
    ]


def benchmark_options() -> list[dict[str, str]]:
    """The options of run_benchmark that are not arguments of their own."""
    from backends.serving.spec import OPTION_NAMES, BenchmarkSpec
    from backends.verbs.importing import MEANING, OPTION

    rows: list[dict[str, str]] = []
    for name in OPTION_NAMES:
        if name in ARGUMENTS_OF_RUN_BENCHMARK:
            continue
        info = BenchmarkSpec.model_fields[name]
        default = info.get_default(call_default_factory=True)
        row = {"option": name, "type": _type_words(info.annotation)}
        if default not in (None, "", []):
            row["default"] = str(default)
        rows.append(row | {"meaning": info.description or ""})
    return [*rows, {"option": OPTION, "type": "list of path", "meaning": MEANING}]


def settings_table(app: App) -> list[dict[str, str]]:
    """Every setting: variable, value (never a secret), meaning, and what was wrong with it."""
    wrong = {problem.variable: problem for problem in app.problems}
    rows: list[dict[str, str]] = []
    for field, info in Settings.model_fields.items():
        variable = variable_of(field)
        value = getattr(app.settings, field)
        row = {
            "variable": variable,
            "value": _setting_words(value),
            "meaning": info.description or "",
        }
        if variable in wrong:
            row["problem"] = f"{wrong[variable].problem}; used {wrong[variable].used_instead}"
        rows.append(row)
    known = {row["variable"] for row in rows}
    # A problem with no field of its own (an unreadable .env).
    rows += [
        {"variable": p.variable, "value": "", "meaning": "", "problem": p.problem}
        for p in app.problems
        if p.variable not in known
    ]
    return rows


async def doctor(app: App, targets: tuple[str, ...]) -> list[Check]:
    """What is installed, writable and set, each with the fix where it is not."""
    checks = [
        Check(name="python", ok=sys.version_info >= (3, 11), detail=sys.version.split()[0]),
    ]
    try:
        root = await asyncio.to_thread(app.state.ensure)
        checks.append(Check(name="state directory", ok=True, detail=str(root)))
    except DevopsError as error:
        checks.append(
            Check(name="state directory", ok=False, detail=f"{error.message} {error.next_action}")
        )
    checks += [
        Check(
            name=problem.variable,
            ok=False,
            detail=f"{problem.problem}; using {problem.used_instead}",
        )
        for problem in app.problems
    ]
    for cli, purpose in (("gcloud", "Google Cloud targets"), ("aws", "SageMaker")):
        found = shutil.which(cli)
        if found:
            checks.append(Check(name=cli, ok=True, detail=found))
        else:
            absent = f"not on PATH; needed for {purpose} only"
            checks.append(Check(name=cli, state="not set up", detail=absent))
    lists = await together(*(app.backends.get(name).doctor() for name in targets))
    return checks + [check for found_checks in lists for check in found_checks]


def error_codes() -> list[dict[str, str]]:
    """Every code of the error tree, with what it means."""
    found: dict[str, str] = {}

    def walk(cls: type[DevopsError]) -> None:
        doc = (cls.__doc__ or "").strip().splitlines()[0]
        found.setdefault(cls.code, doc)
        for child in cls.__subclasses__():
            walk(child)

    walk(errors.DevopsError)
    return [{"code": code, "meaning": meaning} for code, meaning in found.items()]


def targets_json(app: App) -> str:
    """The target matrix as JSON."""
    return json.dumps([matrix_row(app.backends.get(name)) for name in app.targets], indent=1)


def template_json(app: App) -> str:
    """The arguments of plan_deployment as JSON schemas, by target."""
    schemas = {
        name: cast("Any", backend).Spec.model_json_schema()
        for name in app.targets
        if isinstance(backend := app.backends.get(name), CanDeploy)
    }
    return json.dumps(schemas, indent=1)


def _setting_words(value: object) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, SecretStr):
        return "(set, not shown)"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(getattr(value, "value", value))
    home = str(Path.home())
    return text.replace(home, "~", 1) if text.startswith(home) and home != "/" else text


def _type_words(annotation: object) -> str:
    """A field's type as a person reads it, without the None that stands for "not said"."""
    options = [option for option in get_args(annotation) if option is not type(None)]
    if get_origin(annotation) in {Union, UnionType} and len(options) == 1:
        return _type_words(options[0])
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, options))
    if isinstance(annotation, type) and not options:
        return annotation.__name__
    if get_origin(annotation) in {Union, UnionType}:
        return " | ".join(map(_type_words, options))
    return str(annotation).replace("typing.", "")
