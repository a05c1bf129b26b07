"""What is generated in the documents is what the server says."""

from __future__ import annotations

import asyncio

import pytest

from backends.core.settings import PROJECT_DIR, Settings, variable_of
from backends.rehearsal.reference import ask_server, generated, with_parts


def test_documents_and_settings_files_are_what_the_server_says_today() -> None:
    """After a wanted change: make docs."""
    for name, text in generated(asyncio.run(ask_server())).items():
        assert (PROJECT_DIR / name).read_text(encoding="utf-8") == text, f"{name}: run make docs"


def test_every_setting_is_in_the_example_and_in_the_readme() -> None:
    example = (PROJECT_DIR / ".env.example").read_text(encoding="utf-8")
    readme = (PROJECT_DIR / "README.md").read_text(encoding="utf-8")
    for field in Settings.model_fields:
        assert f"# {variable_of(field)}=" in example
        assert f"`{variable_of(field)}`" in readme


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = "a\n<!-- generated: t (make docs) -->\nold\n<!-- end of t -->\nz\n"
    once = with_parts(page, {"t": "new"})
    assert once == "a\n<!-- generated: t (make docs) -->\n\nnew\n\n<!-- end of t -->\nz\n"
    assert with_parts(once, {"t": "new"}) == once


@pytest.mark.parametrize(
    "page", ["no markers", "<!-- generated: t (make docs) -->", "<!-- end of t -->"]
)
def test_a_page_that_lost_its_markers_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match="'t'"):
        with_parts(page, {"t": "new"})
