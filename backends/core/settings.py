"""Every setting of the server, where it came from, and what was wrong with it.

Settings come from the environment, then `.env` beside server.py, then defaults. A wrong value
never stops the server: the safest value is used instead and `get_help` reports it.
`python -m backends.core.settings` prints `.env.example`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from backends.core.names import TARGETS

PROJECT_DIR = Path(__file__).resolve().parents[2]


class Mode(StrEnum):
    """Which tools are listed at all."""

    READ_ONLY = "read-only"
    NO_DESTROY = "no-destroy"
    FULL = "full"


class Confirm(StrEnum):
    """Who must agree before something destructive runs, besides the plan id."""

    PERSON = "person"
    PLAN = "plan"


class LocalEngine(StrEnum):
    """What the `local` target runs unless told otherwise."""

    SIMULATOR = "simulator"
    VLLM = "vllm"


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/vllm-devops`, by default `~/.local/state/vllm-devops`."""
    base = os.environ.get("XDG_STATE_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".local" / "state") / "vllm-devops"


def _env(name: str) -> AliasChoices:
    return AliasChoices(name)


class Settings(BaseSettings):
    """The resolved settings. Field order is the order of `.env.example` and `get_help`."""

    model_config = SettingsConfigDict(
        env_file_encoding="utf-8",
        # `.mcp.json` expands an unset ${VAR:-} to an empty string; `.env` must then still count.
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        populate_by_name=True,
        enable_decoding=False,
    )

    mode: Mode = Field(
        Mode.FULL,
        validation_alias=_env("VLLM_DEVOPS_MODE"),
        description="Tools to list: read-only, no-destroy (read and write) or full.",
    )
    targets: tuple[str, ...] = Field(
        TARGETS,
        validation_alias=_env("VLLM_DEVOPS_TARGETS"),
        description="Targets to offer, comma-separated. Default: all.",
    )
    rehearsal: bool = Field(
        False,
        validation_alias=_env("VLLM_DEVOPS_REHEARSAL"),
        description="1: clouds are played on this machine; no account, no cost, nothing is real.",
    )
    rehearsal_speed: float = Field(
        25,
        gt=0,
        le=1000,
        validation_alias=_env("VLLM_DEVOPS_REHEARSAL_SPEED"),
        description="How many times faster than real ones the played clouds do their work.",
    )
    confirm: Confirm = Field(
        Confirm.PERSON,
        validation_alias=_env("VLLM_DEVOPS_CONFIRM"),
        description="Destructive tools need a plan id and: person = a person's yes through the "
        "client (refused where the client cannot ask); plan = the plan id alone.",
    )
    max_usd_per_hour: float | None = Field(
        None,
        ge=0,
        validation_alias=_env("VLLM_DEVOPS_MAX_USD_PER_HOUR"),
        description="Refuse a plan that would take the total hourly cost above this.",
    )
    plan_ttl_minutes: float = Field(
        15,
        gt=0,
        le=1440,
        validation_alias=_env("VLLM_DEVOPS_PLAN_TTL_MINUTES"),
        description="How long a plan id can be used, in minutes.",
    )
    state_dir: Path = Field(
        default_factory=default_state_dir,
        validation_alias=_env("VLLM_DEVOPS_STATE_DIR"),
        description="Benchmarks, operations, plans and the audit log. "
        "Default: $XDG_STATE_HOME/vllm-devops.",
    )
    local_engine: LocalEngine = Field(
        LocalEngine.SIMULATOR,
        validation_alias=_env("VLLM_DEVOPS_LOCAL_ENGINE"),
        description="What `local` runs by default: simulator or vllm.",
    )
    vllm_bin: str | None = Field(
        None,
        validation_alias=_env("VLLM_DEVOPS_VLLM_BIN"),
        description="The vllm program, or a Python interpreter that has it, for engine=vllm. "
        "Default: vllm on PATH.",
    )
    idle_minutes: float = Field(
        60,
        ge=0,
        validation_alias=_env("VLLM_DEVOPS_IDLE_MINUTES"),
        description="Without a request for so long, what costs money is warned of in every answer; "
        "0: never.",
    )
    local_usd_per_hour: float = Field(
        0,
        ge=0,
        validation_alias=_env("VLLM_DEVOPS_LOCAL_USD_PER_HOUR"),
        description="What this machine costs you per hour, for cost figures of `local`.",
    )
    base_url: str | None = Field(
        None,
        validation_alias=_env("VLLM_BASE_URL"),
        description="Attach an OpenAI-compatible endpoint, read-only, as local/attached.",
    )
    api_key: SecretStr | None = Field(
        None,
        validation_alias=_env("VLLM_API_KEY"),
        description="Its API key. Also given to vLLM engines started on `local`.",
    )
    google_cloud_project: str | None = Field(
        None,
        validation_alias=_env("GOOGLE_CLOUD_PROJECT"),
        pattern="^[a-z][a-z0-9:.-]{4,61}[a-z0-9]$",
        description="Google Cloud project id. Default: the one gcloud is configured for.",
    )
    google_cloud_location: str | None = Field(
        None,
        validation_alias=_env("GOOGLE_CLOUD_LOCATION"),
        pattern="^[a-z]+-[a-z]+[0-9]+$",
        description="Google Cloud region to deploy to. Default: the target's reference region.",
    )
    google_cloud_bucket: str | None = Field(
        None,
        validation_alias=_env("VLLM_DEVOPS_BUCKET"),
        pattern="^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$",
        description="Cloud Storage bucket that holds weights. Default: PROJECT-bucket.",
    )
    aws_region: str | None = Field(
        None,
        validation_alias=AliasChoices("AWS_REGION", "AWS_DEFAULT_REGION"),
        pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$",
        description="AWS region to deploy to. Default: the reference's, us-east-2.",
    )
    aws_regions: tuple[str, ...] | None = Field(
        None,
        validation_alias=_env("VLLM_DEVOPS_AWS_REGIONS"),
        description="AWS regions to look into, comma-separated. Default: AWS_REGION and those that "
        "sell the GPU in every account.",
    )
    log_level: str = Field(
        "WARNING",
        pattern="^(DEBUG|INFO|WARNING|ERROR)$",
        validation_alias=_env("VLLM_DEVOPS_LOG_LEVEL"),
        description="What the server logs to stderr: DEBUG, INFO, WARNING or ERROR.",
    )

    @field_validator("targets", mode="before")
    @classmethod
    def _split_targets(cls, value: object) -> object:
        if isinstance(value, str):
            names = tuple(part.strip() for part in value.split(",") if part.strip())
            unknown = [name for name in names if name not in TARGETS]
            if unknown or not names:
                raise ValueError(f"is not a list of known targets: {', '.join(TARGETS)}")
            return names
        return value

    @field_validator("aws_regions", mode="before")
    @classmethod
    def _split_regions(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not all(re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]", name) for name in names):
            raise ValueError("is not a list of AWS regions such as us-east-2,eu-central-1")
        return names or None

    @field_validator("state_dir")
    @classmethod
    def _one_place(cls, value: Path) -> Path:
        """The same folder for every client and worker, whatever their working directory is."""
        try:
            return PROJECT_DIR / value.expanduser()
        except RuntimeError as error:
            raise ValueError("names the home of a user that is not known here") from error

    @field_validator("base_url")
    @classmethod
    def _http_only(cls, value: str | None) -> str | None:
        if value is None or not value.strip():
            return None
        url = value.strip().rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        if "@" in url.partition("://")[2].partition("/")[0]:
            # It is shown in answers and logs, so a password in it would be too.
            raise ValueError("must not carry a user or password; set VLLM_API_KEY instead")
        try:
            parts = urlsplit(url)
            usable = bool(parts.hostname) and parts.port != 0 and not (parts.query + parts.fragment)
        except ValueError:
            usable = False
        if not usable or any(character.isspace() for character in url):
            raise ValueError("must be http(s)://host[:port][/prefix]")
        return url

    @field_validator(
        "vllm_bin",
        "api_key",
        "max_usd_per_hour",
        "google_cloud_project",
        "google_cloud_location",
        "google_cloud_bucket",
        "aws_region",
        mode="before",
    )
    @classmethod
    def _blank_is_unset(cls, value: object) -> object:
        return None if isinstance(value, str) and not value.strip() else value

    @field_validator("mode", "confirm", "local_engine", "log_level", mode="before")
    @classmethod
    def _trimmed(cls, value: object) -> object:
        return value.strip() if isinstance(value, str) else value


# Used when the value given is wrong: whatever spends and deletes least.
_SAFE: Mapping[str, Any] = {
    "mode": Mode.READ_ONLY,
    "rehearsal": True,
    "confirm": Confirm.PERSON,
    "max_usd_per_hour": 0.0,
}


@dataclass(frozen=True)
class SettingProblem:
    """One wrong setting: its variable, what is wrong, and the value used in its place."""

    variable: str
    problem: str
    used_instead: str


def as_environment(settings: Settings) -> dict[str, str]:
    """The settings as variables, secrets in clear: for a process that must see the same ones."""
    found: dict[str, str] = {}
    for field in Settings.model_fields:
        value = getattr(settings, field)
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
        elif isinstance(value, tuple):
            value = ",".join(map(str, value))
        elif isinstance(value, bool):
            value = int(value)
        if value is not None:
            found[variable_of(field)] = str(value)
    return found


@dataclass(frozen=True)
class LoadedSettings:
    """Settings that are always usable, and the problems met on the way."""

    settings: Settings
    problems: tuple[SettingProblem, ...]


def variable_of(field: str) -> str:
    """The environment variable of a settings field."""
    alias = Settings.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else field.upper()


def env_file() -> Path:
    """Where `.env` is looked for: VLLM_DEVOPS_ENV_FILE, else beside server.py."""
    return Path(os.environ.get("VLLM_DEVOPS_ENV_FILE") or PROJECT_DIR / ".env")


def load_settings(path: Path | None = None) -> LoadedSettings:
    """Read all settings. Never raises for a wrong value.

    Args:
        path: The `.env` file; default `env_file()`.
    """
    file = path or env_file()
    overrides: dict[str, Any] = {}
    problems: list[SettingProblem] = []
    for _ in range(len(Settings.model_fields) + 1):
        try:
            return LoadedSettings(Settings(_env_file=file, **overrides), tuple(problems))
        except ValidationError as error:
            for item in error.errors(include_url=False, include_input=False):
                field = _field_of(str(item["loc"][0]))
                default = Settings.model_fields[field].get_default(call_default_factory=True)
                overrides[field] = _SAFE.get(field, default)
                problems.append(
                    SettingProblem(
                        variable_of(field),
                        str(item["msg"]).removeprefix("Value error, "),
                        str(overrides[field]),
                    )
                )
        except (OSError, UnicodeDecodeError) as error:
            problems.append(SettingProblem(str(file), f"cannot be read: {error}", "no file"))
            file = Path(os.devnull)
    raise AssertionError("every wrong setting was replaced and still one is wrong")


def _field_of(location: str) -> str:
    if location in Settings.model_fields:
        return location
    return next(name for name in Settings.model_fields if variable_of(name) == location)


def env_example() -> str:
    """The text of `.env.example`: every setting, commented out, with its meaning and default."""
    lines = ["# Settings of vllm-devops. Copy to .env; the environment wins over this file.", ""]
    for name, info in Settings.model_fields.items():
        default = "" if info.default_factory or info.default is None else info.default
        if name == "targets":
            default = ",".join(TARGETS)
        lines += [f"# {info.description}", f"# {variable_of(name)}={default}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(env_example())
