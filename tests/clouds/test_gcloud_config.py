"""What gcloud is configured for is read from its files as gcloud itself would."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.clouds.gcloud_config import configured


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gcloud configuration with two named sets."""
    folder = tmp_path / "gcloud"
    (folder / "configurations").mkdir(parents=True)
    (folder / "active_config").write_text("work", encoding="utf-8")
    for name, project in (("default", "home-project"), ("work", "work-project%1")):
        text = f"[core]\naccount = me@example.com\nproject = {project}\n"
        (folder / "configurations" / f"config_{name}").write_text(text, encoding="utf-8")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(folder))
    return folder


@pytest.mark.usefixtures("folder")
def test_the_active_configuration_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured("core", "project") == "work-project%1"
    monkeypatch.setenv("CLOUDSDK_ACTIVE_CONFIG_NAME", "default")
    assert configured("core", "project") == "home-project"
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "named-project")
    assert configured("core", "project") == "named-project"


def test_what_is_not_there_or_damaged_is_not_set(folder: Path) -> None:
    assert configured("compute", "zone") == ""
    (folder / "configurations" / "config_work").write_text("no section\n", encoding="utf-8")
    assert configured("core", "project") == ""
    (folder / "active_config").write_text("gone", encoding="utf-8")
    assert configured("core", "project") == ""
