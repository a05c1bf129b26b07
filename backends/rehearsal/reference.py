"""Writes what is generated in README.md, docs/TOOLS.md and the settings files, from the server.

`make docs` writes; `python -m backends.rehearsal.reference --check` only compares, for the tests.
What clients see and what is written can so not drift apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mcp.client import Client
from mcp.types import Tool

from backends.core.names import SERVER_NAME, TARGETS
from backends.core.settings import PROJECT_DIR, Settings, env_example, variable_of
from backends.rehearsal.launch import server_parameters

_KINDS = {
    "read": "changes nothing",
    "write": "changes, never deletes",
    "destructive": "ends things",
}

_SHARED_OPTIONS = """## Options on several targets

`get_help(topic="options", target=...)` lists the options of one target. These are called the same
on all that have them; sizes of disks and memory are in GiB, times end in their unit.

`places` is where a deployment goes: one region or zone or a list of them, in the order to try, as
`find_capacity` names them. It stands for the target's own words (`region`, `fallback_regions`,
`zone`, `zones`); these are understood on the other targets too, and on a target that goes to zones
a region stands for its zones. Also understood: `subnetwork` for `subnet`, `language_model_only` for
`text_only`, `disk_gb` for `boot_disk_gib`, `instances` for Cloud Run's `scaling`, `role` and
`service_account` for each other, `external` and `internal_ips` as opposites. What says the same
thing twice, or has no meaning on a target, is refused by name.

"""


@dataclass(frozen=True)
class Answers:
    """What the server says of itself: its tools, its targets, and their deploy options."""

    tools: list[Tool]
    targets: list[dict[str, str]]
    options: list[dict[str, str]]


async def ask_server() -> Answers:
    """Start the server with default settings and ask it."""
    async with Client(server_parameters({})) as client:
        tools = (await client.list_tools()).tools
        helps = {
            topic: (await client.call_tool("get_help", {"topic": topic})).structured_content or {}
            for topic in ("targets", "options")
        }
    return Answers(tools, helps["targets"]["targets"], helps["options"]["options"])


def kind_of(tool: Tool) -> str:
    """read, write or destructive."""
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "read"
    return "destructive" if hints is None or hints.destructive_hint else "write"


def tool_table(tools: Iterable[Tool]) -> str:
    """Tools with their kind and the first paragraph of their description."""
    rows = [[kind_of(tool), f"`{tool.name}`", _first_paragraph(tool)] for tool in tools]
    return _table(["kind", "tool", "what it does"], rows)


def target_table(answers: Answers) -> str:
    """Which tool works on which target. Tools that need no target work on all."""
    able = {row["target"]: set(row["can"].split(", ")) for row in answers.targets}
    abilities = set().union(*able.values())
    rows = [
        [f"`{tool.name}`", *("yes" if tool.name in able[target] else "no" for target in able)]
        for tool in answers.tools
        if tool.name in abilities
    ]
    return _table(["tool", *(f"`{target}`" for target in able)], rows)


def options_table(answers: Answers, target: str) -> str:
    """The entries of `options` of plan_deployment on one target."""
    rows = [
        [f"`{row['option']}`", row["type"], row["meaning"]]
        for row in answers.options
        if row["target"] == target
    ]
    return _table(["option", "type", "meaning"], rows)


def settings_table() -> str:
    """Every setting with its default and meaning."""
    rows = [
        [f"`{variable_of(field)}`", _default(field), str(info.description)]
        for field, info in Settings.model_fields.items()
    ]
    return _table(["variable", "default", "meaning"], rows)


def tools_page(answers: Answers) -> str:
    """docs/TOOLS.md: every tool with its arguments, as clients get them."""
    parts = [
        "# Tools\n\nGenerated from the server (`make docs`). Three kinds: "
        + ", ".join(f"**{kind}** {meaning}" for kind, meaning in _KINDS.items())
        + ". Arguments without a default are needed; unknown ones are refused.",
        *(_tool_section(tool) for tool in answers.tools),
        _SHARED_OPTIONS + shared_options_table(answers),
    ]
    return "\n\n".join(parts) + "\n"


def shared_options_table(answers: Answers) -> str:
    """The entries of `options` of plan_deployment that more than one target has."""
    where: dict[str, list[str]] = {}
    for row in answers.options:
        if not row["meaning"].startswith(("stop_serving: ", "destroy: ")):
            where.setdefault(row["option"], []).append(row["target"])
    rows = [
        [f"`{option}`", "all" if len(on) == len(answers.targets) else ", ".join(map(_code, on))]
        for option, on in where.items()
        # Those of one control plane have all options in common.
        if len({target.partition("-")[0] for target in on}) > 1
    ]
    return _table(["option", "targets"], rows)


def _tool_section(tool: Tool) -> str:
    schema: dict[str, Any] = tool.input_schema
    needed = set(schema.get("required", []))
    rows = [
        [
            f"`{name}`",
            _type_words(info),
            "needed" if name in needed else _code(info["default"]) if "default" in info else "",
            str(info.get("description", "")),
        ]
        for name, info in schema.get("properties", {}).items()
    ]
    arguments = (
        _table(["argument", "type", "default", "meaning"], rows) if rows else "No arguments."
    )
    title = f"## {tool.name}\n\n*{kind_of(tool)}*"
    return f"{title}. {tool.description}\n\n{arguments}"


def _type_words(info: dict[str, Any]) -> str:
    if "enum" in info:
        return ", ".join(_code(value) for value in info["enum"])
    words = str(info.get("type", "any"))
    if words == "array":
        words = f"list of {info.get('items', {}).get('type', 'any')}"
    low, high = info.get("minimum"), info.get("maximum")
    if low is not None and high is not None:
        return f"{words}, {low} to {high}"
    return f"{words}, at least {low}" if low is not None else words


def _default(field: str) -> str:
    info = Settings.model_fields[field]
    if field == "targets":
        return _code(",".join(TARGETS))
    if info.default is None or info.default_factory is not None:
        return ""
    return _code(getattr(info.default, "value", info.default))


def _first_paragraph(tool: Tool) -> str:
    return " ".join((tool.description or "").split("\n\n")[0].split())


def _code(value: object) -> str:
    return f"`{value}`"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def claude_code_config() -> str:
    """.mcp.json: Claude Code fills in the variables; those that are not set stay empty.

    Claude Code hands its whole environment on (measured 2026-11-30, version 2.1.197), but other
    clients that read the file do not. Variables that are not ours alone are left to inheritance:
    an empty one could mean something to a cloud's own tools.
    """
    variables = [variable_of(field) for field in Settings.model_fields]
    server = {
        "type": "stdio",
        "command": "${CLAUDE_PROJECT_DIR:-.}/.venv/bin/python",
        "args": ["${CLAUDE_PROJECT_DIR:-.}/server.py"],
        "env": {name: f"${{{name}:-}}" for name in variables if name.startswith("VLLM_")},
    }
    return json.dumps({"mcpServers": {SERVER_NAME: server}}, indent=2) + "\n"


def with_parts(page: str, parts: dict[str, str]) -> str:
    """The page with each generated part put between its markers.

    Args:
        page: Markdown with `<!-- generated: NAME (make docs) -->` and `<!-- end of NAME -->`.
        parts: Name of a part, to its text.

    Raises:
        ValueError: The page lacks the markers of a part, or has them twice.
    """
    for name, text in parts.items():
        begin, end = f"<!-- generated: {name} (make docs) -->", f"<!-- end of {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"there must be one pair of markers for the generated part {name!r}")
        before, _, rest = page.partition(begin)
        after = rest.partition(end)[2]
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def generated(answers: Answers) -> dict[str, str]:
    """File name, to what it should hold."""
    parts = {
        "README.md": {
            "tools": tool_table(answers.tools),
            "targets": target_table(answers),
            "settings": settings_table(),
        },
        "docs/LOCAL.md": {"options": options_table(answers, "local")},
    }
    pages = {
        name: with_parts((PROJECT_DIR / name).read_text(encoding="utf-8"), texts)
        for name, texts in parts.items()
    }
    return pages | {
        "docs/TOOLS.md": tools_page(answers),
        ".env.example": env_example(),
        ".mcp.json": claude_code_config(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the generated files, or compare them; returns 1 if one differs."""
    parser = argparse.ArgumentParser(prog="python -m backends.rehearsal.reference")
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args(arguments)
    stale = 0
    for name, text in generated(asyncio.run(ask_server())).items():
        path = PROJECT_DIR / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if options.check:
            print(f"{name} is not what the server says; run make docs")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
