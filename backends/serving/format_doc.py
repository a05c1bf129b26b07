"""Writes docs/BENCHMARK_FORMAT.md and the JSON schema of `run.json` from the shapes themselves.

python -m backends.serving.format_doc          # write both
python -m backends.serving.format_doc --check  # say whether they are up to date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.core.settings import PROJECT_DIR
from backends.serving.runs import DEFINITIONS, SCHEMA_VERSION, BenchmarkRun
from backends.serving.tables import table

DOC = PROJECT_DIR / "docs" / "BENCHMARK_FORMAT.md"
SCHEMA = PROJECT_DIR / "docs" / "benchmark.schema.json"

_HEAD = f"""\
# The benchmark file

`run.json` is one benchmark: what was asked for, what every level measured, and what that means.
It is written by `run_benchmark`, by `python -m backends.serving.benchmark` and by the import of
`vllm bench serve` results, and replaced atomically while it runs: at any moment it holds all that
has been measured until then. `levels.csv` beside it has one row a level, with nested fields as
`ttft_ms_p50`. The JSON schema is [benchmark.schema.json](benchmark.schema.json).

This page is generated (`python -m backends.serving.format_doc`); a test holds it against the code.

## Version

`schema_version` is {SCHEMA_VERSION}. It grows when a field changes its meaning or goes away. New
fields do not change it, and a reader passes over fields it does not know. A file with a newer
version is refused by name.

## What the figures mean

{{definitions}}

## Fields

A field may be null where the table says so: it is unknown, or was not measured; it is never zero
instead. Units are in the names. Distributions are `mean`, `p50`, `p90`, `p95`, `p99`, percentiles
interpolated between the two nearest ranks as numpy and `vllm bench serve` do.

{{fields}}
"""


def document() -> str:
    """Return the page."""
    definitions = table(
        ["term", "meaning"], [[f"`{name}`", text] for name, text in DEFINITIONS.items()]
    )
    return _HEAD.format(definitions=definitions, fields="\n\n".join(_sections()))


def schema() -> str:
    """Return the JSON schema of a run as it is written."""
    return json.dumps(_schema(), indent=1) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write or check both files; returns the exit code, 1 when one is out of date."""
    wanted = {DOC: document(), SCHEMA: schema()}
    if list(arguments) == ["--check"]:
        stale = [path.name for path, text in wanted.items() if not _holds(path, text)]
        if stale:
            sys.stderr.write(f"Out of date: {', '.join(stale)}. Run this without --check.\n")
        return 1 if stale else 0
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _schema() -> dict[str, Any]:
    return BenchmarkRun.model_json_schema(mode="serialization")


def _sections() -> Iterator[str]:
    whole = _schema()
    parts: Mapping[str, Any] = whole["$defs"]
    yield f"### BenchmarkRun: the file\n\n{_fields(whole)}"
    for name, part in parts.items():
        if part.get("type") != "object" or name == "Distribution":
            continue
        about = str(part.get("description", "")).split("\n\n", 1)[0].replace("\n", " ")
        yield f"### {name}\n\n{about}\n\n{_fields(part)}"


def _fields(part: Mapping[str, Any]) -> str:
    rows = [
        [f"`{name}`", _type(field), str(field.get("description", "")).replace("\n", " ")]
        for name, field in part["properties"].items()
    ]
    return table(["field", "type", "meaning"], rows)


def _type(field: Mapping[str, Any]) -> str:
    """Return a field's type in words."""
    kind = str(field.get("type", "any"))
    if "$ref" in field:
        kind = str(field["$ref"]).rsplit("/", 1)[-1]
    elif "anyOf" in field:
        kind = " or ".join(_type(one) for one in field["anyOf"])
    elif "enum" in field or "const" in field:
        kind = " / ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    elif kind == "array":
        kind = f"list of {_type(field.get('items', {}))}"
    elif kind == "object":
        kind = f"object of {_type(field['additionalProperties'])}"
    return kind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
