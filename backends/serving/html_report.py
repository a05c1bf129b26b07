"""Renders runs as one HTML file that needs nothing else: style and pictures are inside it."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

from backends.serving.chart import comparison_chart, run_chart
from backends.serving.comparison import comparison_markdown
from backends.serving.report import run_markdown
from backends.serving.runs import BenchmarkRun

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff;
  max-width: 1180px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; }
h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
p.head { font-weight: 600; margin: 1.2rem 0 .3rem; }
img { max-width: 100%; height: auto; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums;
  margin: .6rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e4e4e4; text-align: right;
  white-space: nowrap; }
th { background: #f5f5f5; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child { text-align: left; }
tr.no td { color: #8a8a8a; }
ul { padding-left: 1.2rem; margin: .3rem 0; }
p.simulated { background: #fff3cd; border: 1px solid #e0c76a; padding: .4rem .8rem; }
dl { font-size: .86rem; display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
footer { color: #777; font-size: .8rem; margin-top: 2rem; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; } }
""".strip()


def run_html(run: BenchmarkRun) -> str:
    """Return one run as a page: chart, tables, findings, warnings, definitions and spec."""
    body = [_simulated([run]), _picture(run_chart(run, "svg"), f"Charts of {run.label}")]
    body += [_from_markdown(run_markdown(run)), _facts(run), _definitions(run)]
    return _page(f"Benchmark {run.label}", "".join(body))


def comparison_html(runs: Sequence[BenchmarkRun]) -> str:
    """Return several runs as a page: their comparison, then each of them.

    Args:
        runs: At least one.
    """
    body = [_simulated(runs), _picture(comparison_chart(runs, "svg"), "Comparison of the runs")]
    body.append(_from_markdown(comparison_markdown(runs)))
    for run in runs:
        body.append(_from_markdown(run_markdown(run)))
        body.append(_picture(run_chart(run, "svg"), f"Charts of {run.label}"))
        body.append(_facts(run))
    body.append(_definitions(runs[0]))
    return _page("Comparison of benchmarks", "".join(body))


def _page(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{body}"
        "<footer>Written by vllm-devops. This page loads nothing from elsewhere.</footer>"
        "</body></html>\n"
    )


def _simulated(runs: Sequence[BenchmarkRun]) -> str:
    names = [run.label for run in runs if run.simulated]
    if not names:
        return ""
    whose = (
        "Every figure here" if len(names) == len(runs) else f"Of {', '.join(names)} every figure"
    )
    return (
        f'<p class="simulated">{html.escape(whose)} is simulated, not measured on an '
        "accelerator.</p>\n"
    )


def _picture(svg: bytes, alt: str) -> str:
    """Embed a picture; as an image of its own, because inline drawings would share their ids."""
    data = base64.b64encode(svg).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{data}">\n'


def _from_markdown(text: str) -> str:
    """Render the Markdown our own reports are made of: headings, tables, lists, lines."""
    out: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        block: list[str] = []
        kind = line[:2]
        if kind in ("| ", "- "):
            while at < len(lines) and lines[at].startswith(kind):
                block.append(lines[at])
                at += 1
            out.append(_table(block) if kind == "| " else _list(block))
            continue
        at += 1
        if line.startswith("## "):
            out.append(f"<h2>{html.escape(line[3:])}</h2>\n")
        elif line.endswith(":"):
            out.append(f'<p class="head">{html.escape(line)}</p>\n')
        elif line:
            out.append(f"<p>{html.escape(line)}</p>\n")
    return "".join(out)


def _table(lines: Sequence[str]) -> str:
    rows = [_cells(line) for line in lines if not line.startswith("| ---")]
    head, *body = rows
    out = ["<tr>", *(f"<th>{html.escape(cell)}</th>" for cell in head), "</tr>"]
    for row in body:
        doubtful = head[-1] == "valid" and row[-1] == "no"
        out.append('<tr class="no">' if doubtful else "<tr>")
        out += [f"<td>{html.escape(cell)}</td>" for cell in row]
        out.append("</tr>")
    return f'<div class="wide"><table>{"".join(out)}</table></div>\n'


def _cells(line: str) -> list[str]:
    inner = line.strip()[1:-1].replace("\\|", "\0")
    return [cell.strip().replace("\0", "|") for cell in inner.split("|")]


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line[2:])}</li>' for line in lines)}</ul>\n"


def _facts(run: BenchmarkRun) -> str:
    """Say with what and how it was measured, for whoever repeats it."""
    env, facts = run.environment, run.endpoint
    unset: tuple[object, ...] = (None, "", [])
    asked = run.spec.model_dump(mode="json", exclude_defaults=True)
    shown = {
        "Endpoint": f"{facts.base_url}, vLLM {facts.version or 'unknown'}, context "
        f"{facts.max_model_len or 'unknown'}",
        "Client": f"{env.engine} on {env.client_platform}, {env.client_cpus} CPUs; times: "
        f"{env.timestamp_source}",
        "Asked for": ", ".join(f"{k}={v}" for k, v in asked.items() if v not in unset)
        or "defaults",
    }
    return _terms(f"How {run.label} was measured", shown)


def _definitions(run: BenchmarkRun) -> str:
    return _terms("Definitions", run.definitions)


def _terms(title: str, terms: dict[str, str]) -> str:
    rows = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in terms.items()
    )
    return f'<p class="head">{html.escape(title)}</p><dl>{rows}</dl>\n'
