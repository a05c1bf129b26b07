"""How server.py is started as an MCP client would, with settings of our own and no others."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from mcp.client.stdio import StdioServerParameters

from backends.core.settings import PROJECT_DIR, Settings, variable_of


def server_parameters(settings: Mapping[str, str]) -> StdioServerParameters:
    """Start parameters of a server that is the same whatever the caller has set.

    Args:
        settings: Variables set for it, in place of the caller's settings and `.env`.
    """
    ours = {variable_of(field) for field in Settings.model_fields}
    inherited = {key: value for key, value in os.environ.items() if key not in ours}
    return StdioServerParameters(
        command=sys.executable,
        args=[str(PROJECT_DIR / "server.py")],
        env={**inherited, "VLLM_DEVOPS_ENV_FILE": os.devnull, **settings},
        cwd=PROJECT_DIR,
    )
