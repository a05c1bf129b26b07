"""`python -m backends.serving.simulator`: run the simulator until SIGTERM."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import signal
import socket
import sys
from types import FrameType

import uvicorn

from backends.serving.simulator.app import SimulatorApp
from backends.serving.simulator.config import SimulatorConfig, parse_config
from backends.serving.simulator.driver import Driver
from backends.serving.simulator.engine import Engine
from backends.serving.simulator.exposition import Exposition, cache_config
from backends.serving.simulator.log import log, raw, set_up_logging
from backends.serving.simulator.startup import Startup, StartupError

BACKLOG = 2048
"""Connections waiting to be accepted: above the 1,024 streams the simulator is built for."""

WANTED_FILES = 65_535
"""Open files vLLM asks for (`set_ulimit`, 0.32): each stream takes one."""

CRASH_LINGER_S = 3.0
"""vLLM's API process outlives its engine for some seconds, answering /health with 503."""

SHUTDOWN_S = 1


class SimulatorServer(uvicorn.Server):
    """uvicorn, which on shutdown first ends the requests in flight, as vLLM does.

    Args:
        config: uvicorn's settings.
        driver: The engine in time.
    """

    def __init__(self, config: uvicorn.Config, driver: Driver) -> None:
        super().__init__(config)
        self._driver = driver

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Abort what runs, then close."""
        log("APIServer", "launcher.py:254", "[shutdown] API server: shutdown triggered")
        self._driver.abort_all()
        await super().shutdown(sockets)


def bind(config: SimulatorConfig) -> socket.socket:
    """Reserve the port: bound, but not listening, so that connections are refused until ready.

    Raises:
        StartupError: The port is in use.
    """
    if config.socket_fd is not None:
        return socket.socket(fileno=config.socket_fd)
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Two sockets that both allow reuse can share a port until one listens. So reuse is allowed
    # only where the port seems taken, which connections that just ended also cause.
    for reuse in (False, True):
        # Only where the protocol is named does asyncio turn Nagle's algorithm off for what is
        # accepted; with it, first tokens wait 40 ms for the client's delayed acknowledgement.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((config.host, config.port))
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE or reuse:
                _fail_to_bind(error)
        else:
            return sock
    raise StartupError


def _fail_to_bind(error: OSError) -> None:
    raw(f"Traceback (most recent call last):\nOSError: [Errno {error.errno}] {error.strerror}")
    raise StartupError


def allow_many_connections() -> None:
    """Raise the limit of open files as far as it goes, as vLLM does at its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def build_engine(config: SimulatorConfig) -> Engine:
    """The engine of a configuration."""
    return Engine(
        config.step_model(),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        kv_tokens=config.kv_tokens(),
        max_model_len=config.max_model_len,
        prefix_caching=config.prefix_caching,
        time_scale=config.time_scale,
    )


def build_server(config: SimulatorConfig) -> SimulatorServer:
    """The HTTP server of a configuration, engine included; not yet started."""
    engine = build_engine(config)
    server: SimulatorServer | None = None

    def crash() -> None:
        log(
            "APIServer",
            "core_client.py:817",
            "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
            logging.WARNING,
        )
        log(
            "APIServer",
            "async_llm.py:906",
            "AsyncLLM output_handler failed.\nTraceback (most recent call last):\n"
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
            "trace (above) for the root cause.",
            logging.ERROR,
        )

        def stop() -> None:
            if server is not None:
                server.should_exit = True

        asyncio.get_running_loop().call_later(CRASH_LINGER_S, stop)

    driver = Driver(engine, failure=config.failure, on_crash=crash)
    share = config.memory_utilization or (
        config.profile.accelerator.default_memory_utilization.value
    )
    exposition = Exposition(
        engine,
        config.served_model_names[0],
        cache_config(
            kv_tokens=config.kv_tokens(),
            max_model_len=config.max_model_len,
            kv_cache_dtype=config.kv_cache_dtype,
            memory_utilization=share,
            prefix_caching=config.prefix_caching,
        ),
    )
    app = SimulatorApp(config, driver, exposition)
    for path, method in app.routes:
        log("APIServer", "launcher.py:195", f"Route: {path}, Methods: {method}")
    server = SimulatorServer(
        uvicorn.Config(
            app,
            backlog=BACKLOG,
            timeout_graceful_shutdown=SHUTDOWN_S,
            lifespan="on",
            ws="none",
        ),
        driver,
    )
    logging.getLogger("uvicorn.error").addFilter(_without_uvicorn_banner)
    return server


def _without_uvicorn_banner(record: logging.LogRecord) -> bool:
    """Drop uvicorn's own "running on" line, which vLLM's log does not have."""
    return not record.getMessage().startswith("Uvicorn running on")


def main() -> int:
    """Run; returns the exit code."""
    config = parse_config()
    set_up_logging()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        # During start-up this ends the process; uvicorn raises the signal again after its own
        # graceful shutdown, when there is nothing left to do.
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    allow_many_connections()
    sock = bind(config)
    Startup(config).run()
    # Now that nobody else can have the port: connections inherit this, and those that ended do not
    # keep it from the next start, as with vLLM.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    host, port = sock.getsockname()[:2]
    log("APIServer", "entry.py:140", f"Starting vLLM server on http://{host}:{port}")
    log("APIServer", "launcher.py:186", "Available routes are:")
    server = build_server(config)
    # What exists now lives as long as the process: spare the collector from walking it.
    gc.collect()
    gc.freeze()
    server.run(sockets=[sock])
    crashed = config.failure is not None and config.failure.kind == "crash-after"
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
