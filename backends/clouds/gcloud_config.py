"""What gcloud is configured for, read from its own files: no process, no network.

gcloud itself takes most of a second to say the same (528, 2026-11-30).
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path


def gcloud_folder() -> Path:
    """Where gcloud keeps its configuration and logins on this machine."""
    config = os.environ.get("CLOUDSDK_CONFIG")
    return Path(config) if config else Path.home() / ".config" / "gcloud"


def configured(section: str, key: str) -> str:
    """A property as gcloud would use it; empty where it is not set, or only gcloud can tell.

    Args:
        section: e.g. `core`.
        key: e.g. `project`.
    """
    named = os.environ.get(f"CLOUDSDK_{section}_{key}".upper())
    if named:
        return named
    folder = gcloud_folder()
    active = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or _read(folder / "active_config")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(_read(folder / "configurations" / f"config_{active or 'default'}"))
        return parser.get(section, key, fallback="").strip()
    except configparser.Error:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
