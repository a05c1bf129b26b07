"""A plan as a shell script, for those who want to run it by hand."""

from __future__ import annotations

import shlex

from backends.core.plans import Plan


def shell_script(plan: Plan) -> str:
    """The plan's commands in order, each with its title and undo as comments.

    Steps that are not a command of their own say what the server does instead; those of kind
    `later`, which wait for something or may never be due, are shown and not run.
    """
    lines = [
        "#!/usr/bin/env bash",
        f"# {_comment(plan.summary)}",
        "set -euo pipefail",
    ]
    for index, step in enumerate(plan.steps, 1):
        lines += ["", f"# {index}. {_comment(step.title)}"]
        if step.undo:
            lines.append(f"# undo: {_comment(step.undo)}")
        if step.argv:
            settings = [f"{key}={shlex.quote(value)}" for key, value in sorted(step.env.items())]
            command = " ".join([*settings, shlex.join(step.argv)])
            later = step.kind == "later"
            lines.append(f"# when that is so: {_comment(command)}" if later else command)
        else:
            lines.append(f"# done by the server: {_comment(step.shown())}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    return " ".join(text.split())
