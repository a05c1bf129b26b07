"""Sets the client's figures beside the engine's own and says what lies between them.

The client sees everything from send to read; the engine only what happens inside it. What both see
must agree. What only the client sees is the network, a proxy, or a platform that lets only so many
requests through (Cloud Run's `--concurrency`), and each leaves other traces: the network is there
at the lowest load too, an admission queue grows with the load while the engine misses requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.serving.runs import BesideServer, LevelResult

AGREE_SHARE = 0.03
AGREE_MS = 2.0
"""Below this a difference of means is the way through kernel and HTTP server, not worth a word."""

MISSING_SHARE = 0.10
"""Of the requests in flight, from which on the engine is said not to see them."""


def set_beside(levels: Sequence[LevelResult]) -> None:
    """Fill `beside_server` of every level whose engine published figures."""
    told = [level for level in levels if level.server is not None and not level.partial]
    floor_ms = _network_ms(told)
    for level in told:
        level.beside_server = beside(level, floor_ms)


def beside(level: LevelResult, network_ms: float = 0.0) -> list[BesideServer]:
    """Return a level's figures beside the engine's, as far as both are known.

    Args:
        level: The level.
        network_ms: What network and proxy take of a request, from a level without queueing.
    """
    if level.server is None:
        return []
    rows = (_ttft(level, network_ms), _itl(level), _e2e(level, network_ms), _tokens(level))
    return [row for row in rows if row is not None]


def engine_mean(level: LevelResult, name: str) -> float | None:
    """Return the engine's mean number of requests running or waiting, over the level's time.

    The two readings of /metrics lie a little before and after the level; what happened between them
    happened in the level.

    Args:
        level: The level.
        name: `mean_running` or `mean_waiting`.
    """
    server = level.server
    value = getattr(server, name, None)
    if server is None or value is None or level.duration_s <= 0:
        return None
    return float(value) * server.seconds / level.duration_s


def not_in_engine(level: LevelResult) -> float | None:
    """Return how many requests in flight the engine did not see on average; None where unknown."""
    running, waiting = engine_mean(level, "mean_running"), engine_mean(level, "mean_waiting")
    in_flight = in_flight_mean(level)
    if running is None or waiting is None or in_flight is None:
        return None
    return in_flight - running - waiting


def in_flight_mean(level: LevelResult) -> float | None:
    """Return the mean number of requests in flight, as the client had them, by Little's law."""
    if level.requests_per_s is None or level.e2e_ms.mean is None:
        return None
    return level.requests_per_s * level.e2e_ms.mean / 1e3


def _network_ms(levels: Sequence[LevelResult]) -> float:
    """Return what is outside the engine at the lowest load, where nothing queues in front of it."""
    found = [
        (level.load, ours - theirs)
        for level in levels
        if (ours := level.ttft_ms.mean) is not None
        and (theirs := _server_mean(level, "ttft_ms")) is not None
    ]
    lowest = min(found, default=None)
    return max(0.0, lowest[1]) if lowest is not None else 0.0


def _server_mean(level: LevelResult, name: str) -> float | None:
    stats = getattr(level.server, name, None)
    return None if stats is None or not stats.count else stats.mean


def _row(figure: str, client: float | None, server: float | None) -> BesideServer | None:
    if client is None or server is None:
        return None
    difference = client - server
    near = abs(difference) <= max(AGREE_SHARE * max(client, server), AGREE_MS)
    return BesideServer.model_validate(
        {
            "figure": figure,
            "client": client,
            "server": server,
            "difference": difference,
            "agrees": near,
        }
    )


def _ttft(level: LevelResult, floor_ms: float) -> BesideServer | None:
    row = _row("ttft", level.ttft_ms.mean, _server_mean(level, "ttft_ms"))
    return row and _explained(row, level, floor_ms)


def _e2e(level: LevelResult, floor_ms: float) -> BesideServer | None:
    row = _row("e2e", level.e2e_ms.mean, _server_mean(level, "e2e_ms"))
    return row and _explained(row, level, floor_ms)


def _explained(row: BesideServer, level: LevelResult, floor_ms: float) -> BesideServer:
    """Say where a difference of latency comes from."""
    if row.agrees:
        return row
    said: list[str] = []
    if row.difference < 0:
        row.where, row.explanation = (
            ["other traffic"],
            (
                "the engine's mean is longer than the client's: it counts others' requests too, or "
                "/metrics answers for another instance"
            ),
        )
        return row
    left_ms = row.difference
    if floor_ms > AGREE_MS:
        row.where.append("network")
        said.append(
            f"{min(floor_ms, left_ms):.0f} ms are there at the lowest load too: network, proxy and "
            "HTTP server"
        )
    left_ms -= floor_ms
    missing, in_flight = not_in_engine(level), in_flight_mean(level)
    rate = level.requests_per_s
    queued = missing is not None and in_flight is not None and missing > MISSING_SHARE * in_flight
    if left_ms > AGREE_MS and queued and missing and rate:
        row.where.append("admission queue")
        said.append(
            f"{left_ms:.0f} ms came with the load, while {missing:.1f} of {in_flight:.1f} requests "
            "in flight were not in the engine: a queue in front of it "
            f"({missing / rate * 1e3:.0f} ms a request by Little's law)"
        )
        left_ms = 0.0
    if left_ms > max(AGREE_MS, AGREE_SHARE * row.client):
        late = level.self_check.limited_the_level
        row.where.append("client" if late else "unknown")
        said.append(
            f"{left_ms:.0f} ms: the client was too slow to read or send"
            if late
            else f"{left_ms:.0f} ms are not explained by what is published"
        )
    row.explanation = "; ".join(said)
    return row


def _itl(level: LevelResult) -> BesideServer | None:
    """Compare time per token: the engine's histogram has one sample a token, as our TPOT has."""
    several = (level.tokens_per_event or 1.0) > 1 + AGREE_SHARE
    ours = level.tpot_ms.mean if several else level.itl_ms.mean
    row = _row("itl", ours, _server_mean(level, "itl_ms"))
    if row is None:
        return None
    row.agrees = abs(row.difference) <= max(AGREE_SHARE * row.server, 0.1)
    if row.agrees:
        return row
    if level.self_check.limited_the_level:
        row.where, row.explanation = ["client"], "the client was too slow to read"
    elif row.difference > 0:
        row.where, row.explanation = (
            ["network"],
            "chunks came slower than the engine made them: a proxy or the HTTP server holds them",
        )
    else:
        row.where, row.explanation = (
            ["other traffic"],
            "the engine's mean is longer: requests of others, or prefill that its gaps contain",
        )
    return row


def _tokens(level: LevelResult) -> BesideServer | None:
    made = level.server.generation_tokens if level.server else None
    if made is None or level.duration_s <= 0:
        return None
    row = _row("output tokens/s", level.output_tokens_per_s, made / level.duration_s)
    if row is None:
        return None
    row.agrees = abs(row.difference) <= 0.05 * max(row.client, row.server)
    if not row.agrees:
        row.where = ["other traffic"] if row.difference < 0 else ["unknown"]
        row.explanation = (
            "the engine made more tokens than this client got: other traffic, or failed requests"
            if row.difference < 0
            else "the engine counted fewer: /metrics answers for one of several instances"
        )
    return row
