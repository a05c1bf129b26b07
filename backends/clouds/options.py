"""Checks that options of several targets share: images, variables, arguments, members of a net."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

_IMAGE = re.compile(r"^[a-z0-9][\w./:-]*(?::[\w.-]+|@sha256:[0-9a-f]{64})$")
_ENV = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_SECRET_NAME = re.compile(r"(?i)(token|secret|password|api_?key|credential)")
# A caller's own network at most: a house, an office, one IPv6 subscriber.
_WIDEST_V4 = 24
_WIDEST_V6 = 56


def pinned_image(value: str | None) -> str | None:
    """The image, if it is pinned by a tag other than latest or by a digest.

    Raises:
        ValueError: It is not.
    """
    if value is not None and (not _IMAGE.match(value) or value.endswith(":latest")):
        raise ValueError("must be pinned by a tag other than latest, or by @sha256:...")
    return value


def plain_variables(value: list[str], *, shown_in: str) -> list[str]:
    """`KEY=VALUE` items, if none of them is a secret.

    Args:
        value: The items.
        shown_in: Where they would stand for all to read.

    Raises:
        ValueError: One is something else.
    """
    for item in value:
        if not _ENV.match(item):
            raise ValueError("takes KEY=VALUE items")
        if _SECRET_NAME.search(item.partition("=")[0]):
            raise ValueError(
                f"must not carry secrets: they would stand in {shown_in}; keep the Hugging Face "
                "token with save_hf_token"
            )
    return value


def plain_arguments(value: list[str], *, shown_in: str) -> list[str]:
    """Further arguments of vLLM, if none of them is a secret.

    Raises:
        ValueError: One is.
    """
    if any(item.startswith(("--api-key", "--hf-token")) for item in value):
        raise ValueError(f"must not carry secrets: they would stand in {shown_in}")
    return value


def caller_networks(value: Sequence[str]) -> list[str]:
    """Addresses and small networks of callers, in their usual form.

    Raises:
        ValueError: One is none, or is wider than a caller's own.
    """
    found: list[str] = []
    for item in value:
        try:
            network = ipaddress.ip_network(item.strip(), strict=False)
        except ValueError:
            raise ValueError("takes addresses or networks, e.g. 203.0.113.7/32") from None
        widest = _WIDEST_V4 if network.version == 4 else _WIDEST_V6
        if network.prefixlen < widest:
            raise ValueError(
                f"takes the caller's own network, not one wider than /{widest}: {network}"
            )
        found.append(str(network))
    return found
