"""Tokens that a command prints: sent, kept for a while, asked for again, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.core.errors import CliMissingError, InvalidInputError, UnauthenticatedError
from backends.serving import benchmark, token_command
from backends.serving.token_command import TokenCommand
from tests.serving.mock_servers import GOOD, MODELS, Reply, Request, Route, scripted, stream, whole


def printing(tmp_path: Path, body: str) -> str:
    script = tmp_path / "login"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o700)
    return f"{script} 'an argument'"


async def test_a_token_is_kept_until_it_may_have_grown_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    give = TokenCommand(printing(tmp_path, f'printf x >> {count}; echo "$1" >&2; wc -c < {count}'))
    assert await give.headers() == {"authorization": "Bearer 1"}
    assert await give.headers() == {"authorization": "Bearer 1"}
    monkeypatch.setattr(token_command, "FRESH_S", 0.0)
    give._until_s = 0.0
    assert await give.headers() == {"authorization": "Bearer 2"}
    assert await give.headers() == {"authorization": "Bearer 3"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'not logged in' >&2; exit 3", "ended with code 3"),
        ("true", "did not print one token"),
        ("echo two words", "did not print one token"),
    ],
)
async def test_a_command_that_gives_none_is_said_in_its_words(
    tmp_path: Path, body: str, words: str
) -> None:
    with pytest.raises(UnauthenticatedError, match=words) as caught:
        await TokenCommand(printing(tmp_path, body)).headers()
    if "exit" in body:
        assert caught.value.words == "not logged in"
    assert "two words" not in f"{caught.value.message}{caught.value.words}"


async def test_a_program_that_is_not_there_is_said() -> None:
    with pytest.raises(CliMissingError):
        await TokenCommand("/nowhere/login").headers()


@pytest.mark.parametrize("command", ["", "'open"])
def test_a_command_that_is_none_is_refused(command: str) -> None:
    with pytest.raises(InvalidInputError):
        TokenCommand(command)


async def test_the_command_line_sends_it(tmp_path: Path) -> None:
    def guarded(request: Request) -> Reply:
        if request.headers.get("authorization") != "Bearer tok-en":
            return whole(401, b'{"error":{"message":"who are you"}}')
        return whole(200, MODELS) if request.method == "GET" else stream(GOOD)

    routes: dict[str, Route | Reply] = {"/v1/models": guarded, "/v1/chat/completions": guarded}
    async with scripted(routes) as server:
        parser = benchmark._parser()
        asked = parser.parse_args(
            [
                *("--base-url", server.base_url, "--concurrency", "1", "--requests", "2"),
                *("--token-command", printing(tmp_path, "echo tok-en")),
                *("--output", str(tmp_path / "run.json")),
            ]
        )
        endpoint = benchmark._endpoint(asked)
        code = await benchmark._run(benchmark._spec(asked), endpoint, asked, [])
    assert code in (0, 3)
    text = (tmp_path / "run.json").read_text()
    assert '"errors": 0' in text
    assert "tok-en" not in text
