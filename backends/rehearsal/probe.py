"""The server asked by raw JSON-RPC over stdio, without any SDK, in both eras of the protocol.

`make probe` prints what every client sees: the tools with their kind, resources, prompts, times.
It also shows how to talk to the server from anything that can start a process and write lines:

- one JSON object a line, on the server's stdin and stdout, UTF-8; stderr is for people;
- keep stdin open for as long as the server is wanted: its end tells the server to leave;
- since 2026-07-28 there is no handshake: every request carries `_meta` with the protocol version
  and what the client can do, and `server/discover` asks who the server is;
- before that, `initialize` and `notifications/initialized` come first, once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from backends.core.settings import PROJECT_DIR
from backends.rehearsal.terminal import Terminal

Json = dict[str, Any]

HANDSHAKES = ("2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
CLIENT = {"name": "vllm-devops-probe", "version": "1"}

_ANSWER_TIMEOUT_S = 30.0
_EXIT_TIMEOUT_S = 5.0


class ProbeError(Exception):
    """The server did not do what the protocol or our own contract asks of it."""


class Wire:
    """One server process and the lines to and from it.

    Args:
        command: How the server is started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._meta: Json | None = None
        self._last_id = 0
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        # A server that hangs is killed; the read below then ends with an empty line.
        self._watchdog = threading.Timer(_ANSWER_TIMEOUT_S, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None:
        self._watchdog.cancel()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def handshake(self, version: str) -> Json:
        """The way in before 2026-07-28; returns what the server says of itself.

        Args:
            version: A protocol version of 2025.
        """
        hello = self.ask(
            "initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT}
        )
        _check(hello["protocolVersion"] == version, f"answered {hello['protocolVersion']}")
        self.send({"method": "notifications/initialized"})
        return hello

    def discover(self) -> Json:
        """The way in since 2026-07-28: from now on every request carries an envelope."""
        self._meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": CLIENT,
        }
        found = self.ask("server/discover", {})
        _check(MODERN in found["supportedVersions"], f"offers only {found['supportedVersions']}")
        # A server of this era puts its name into `_meta` of each result.
        stamp = found.get("_meta", {}).get("io.modelcontextprotocol/serverInfo")
        return found | ({"serverInfo": stamp} if stamp else {})

    def ask(self, method: str, params: Json) -> Json:
        """Send a request and read lines until its answer is there.

        Raises:
            ProbeError: An error instead of a result, no JSON, or no answer in time.
        """
        self._last_id += 1
        if self._meta is not None:
            params = {**params, "_meta": self._meta}
        self.send({"id": self._last_id, "method": method, "params": params})
        stdout = self._process.stdout
        while line := stdout.readline() if stdout else "":
            try:
                message = json.loads(line)
            except ValueError as error:
                raise ProbeError(
                    f"{method}: stdout has a line that is no JSON: {line!r}"
                ) from error
            if message.get("id") != self._last_id:
                continue  # a notification, or the answer to something else
            if "error" in message:
                raise ProbeError(f"{method}: {message['error']}")
            return dict(message["result"])
        raise ProbeError(f"{method}: no answer; the server left with {self._process.wait()}.")

    def send(self, message: Json) -> None:
        """Write one line."""
        stdin = self._process.stdin
        if stdin is not None:
            stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            stdin.flush()

    def leave(self) -> int:
        """Close stdin, as a client that goes away does; returns the server's exit code."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            return self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ProbeError(f"It stayed {_EXIT_TIMEOUT_S} s after the end of stdin.") from error


class Stopwatch:
    """Milliseconds of each thing that was asked, in order."""

    def __init__(self) -> None:
        self.rows: list[Json] = []

    def time(self, what: str, do: Callable[[], Json]) -> Json:
        """Do it and note how long it took."""
        began = time.perf_counter()
        result = do()
        self.rows.append({"what": what, "ms": (time.perf_counter() - began) * 1000})
        return result


def probe(version: str, command: Sequence[str], terminal: Terminal) -> list[Json]:
    """Ask a fresh server everything once, in one version of the protocol.

    Args:
        version: The protocol version.
        command: How the server is started.
        terminal: Where times are shown.

    Returns:
        The tools as listed.

    Raises:
        ProbeError: Something is off.
    """
    watch = Stopwatch()
    with Wire(command) as wire:
        if version == MODERN:
            hello = watch.time("start, then server/discover", wire.discover)
        else:
            hello = watch.time("start, then initialize", lambda: wire.handshake(version))
        named = hello.get("serverInfo", {})
        terminal.heading(f"Protocol {version}: {named.get('name')} {named.get('version')}")
        _check(named.get("name") == "vllm-devops", f"says it is {named}")
        _check(bool(hello.get("instructions")), "gives no instructions")

        tools = list(watch.time("tools/list", lambda: wire.ask("tools/list", {}))["tools"])
        resources = wire.ask("resources/list", {})["resources"]
        templates = wire.ask("resources/templates/list", {})["resourceTemplates"]
        prompts = wire.ask("prompts/list", {})["prompts"]
        answer = watch.time(
            "tools/call get_help",
            lambda: wire.ask("tools/call", {"name": "get_help", "arguments": {}}),
        )
        _check(not answer.get("isError"), f"get_help failed: {answer['content']}")
        wrong = wire.ask("tools/call", {"name": "get_help", "arguments": {"topc": "targets"}})
        _check(bool(wrong.get("isError")), "an unknown argument was not refused")
        _check(wire.leave() == 0, "left with an error after the end of stdin")
    for tool in tools:
        _check(kind_of(tool) != "?", f"{tool['name']} says nothing of its kind")
        _check(bool(tool.get("description")), f"{tool['name']} has no description")
    terminal.table(watch.rows, {"what": "asked", "ms": "ms"})
    terminal.say(f"instructions: {len(hello['instructions'])} characters")
    terminal.say("resources: " + ", ".join(item["uri"] for item in resources))
    terminal.say("templates: " + ", ".join(item["uriTemplate"] for item in templates))
    terminal.say("prompts: " + ", ".join(item["name"] for item in prompts))
    terminal.say(f"get_help: {answer['structuredContent']['summary']}")
    terminal.say(f"an unknown argument: {wrong['content'][0]['text'].splitlines()[0]}")
    return tools


def kind_of(tool: Json) -> str:
    """read, write or destructive, by the annotations that clients gate tools by."""
    hints = tool.get("annotations", {})
    if hints.get("readOnlyHint") is True:
        return "read"
    return {True: "destructive", False: "write"}.get(hints.get("destructiveHint"), "?")


def show_tools(tools: Sequence[Json], terminal: Terminal) -> None:
    """The tools as a table: name, kind, first line of the description."""
    rows = [
        {"tool": tool["name"], "kind": kind_of(tool), "does": tool["description"].split("\n")[0]}
        for tool in tools
    ]
    terminal.table(rows, {"tool": "tool", "kind": "kind", "does": "what it does"})


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ProbeError(f"The server {otherwise}.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe in every version; returns 0 if all is as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m backends.rehearsal.probe",
        description="Asks the server by raw JSON-RPC, in every version of the protocol it speaks.",
    )
    parser.add_argument(
        "command", nargs="*", help="another command that starts the server (default: server.py)"
    )
    options = parser.parse_args(arguments)
    command = options.command or [sys.executable, str(PROJECT_DIR / "server.py")]
    terminal = Terminal()
    try:
        lists = [probe(version, command, terminal) for version in (*HANDSHAKES, MODERN)]
        names = [[tool["name"] for tool in tools] for tools in lists]
        _check(names[0] == names[1] == names[2], "lists other tools in another era")
    except (ProbeError, OSError) as error:
        terminal.bad(f"Probe failed: {error}")
        return 1
    terminal.heading(f"{len(names[0])} tools, the same in every version")
    show_tools(lists[-1], terminal)
    return 0


if __name__ == "__main__":
    sys.exit(main())
