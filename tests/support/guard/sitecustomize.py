"""Refuses network access outside this machine, in this Python and every one it starts.

Python imports a module of this name by itself at start-up, so a folder on PYTHONPATH is enough to
guard servers, workers and engines that a test starts as processes of their own.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys

_GUARDED = {"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"}
_LOCAL_FAMILIES = {socket.AF_UNIX, getattr(socket, "AF_NETLINK", socket.AF_UNIX)}

# A file that collects what was refused, for processes whose errors nobody would see.
REPORT_VARIABLE = "TESTS_NETWORK_REPORT"


class NetworkRefusedError(OSError):
    """Something tried to leave this machine during a test."""


def is_loopback(host: object) -> bool:
    """Whether a host part of an address stays on this machine."""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if not isinstance(host, str):
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refused(event: str, args: tuple[object, ...]) -> str | None:
    if event == "socket.getaddrinfo":
        return None if args[0] is None or is_loopback(args[0]) else f"look-up of {args[0]!r}"
    sock, address = args[0], args[1]
    if isinstance(sock, socket.socket) and sock.family in _LOCAL_FAMILIES:
        return None
    if isinstance(address, tuple) and address and is_loopback(address[0]):
        return None
    return f"{event} to {address!r}"


def _hook(event: str, args: tuple[object, ...]) -> None:
    if event not in _GUARDED:
        return
    what = _refused(event, args)
    if what is None:
        return
    report = os.environ.get(REPORT_VARIABLE)
    if report:
        with open(report, "a", encoding="utf-8") as file:  # noqa: PTH123 (no imports wanted here)
            file.write(f"{os.getpid()} {' '.join(sys.argv)[:200]}: {what}\n")
    raise NetworkRefusedError(f"tests stay on this machine; refused: {what}")


sys.addaudithook(_hook)
