"""Starts and stops the rehearsal cloud, and says what CLIs and client libraries need.

from backends.rehearsal.cloud import launcher

running = launcher.start(Path("/some/folder"))          # at once if it runs already
environment = launcher.environment(running)             # for gcloud, aws, clients and httpx
launcher.stop(Path("/some/folder"))
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.core.detached import created_at, detach, end, is_running
from backends.core.errors import CliMissingError, UnavailableError
from backends.core.state import read_json, write_json, write_text

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World

DEFAULT_SPEED = 25.0
IDLE_S = 900.0
LEAST_IDLE_S = 20.0

AWS_REGION = "us-east-2"
"""The region that aws and botocore are configured for; the others are asked by name."""

_RECORD = "cloud.json"
_START_S = 20.0
_STOP_S = 6.0
_POLL_S = 0.05
_FAR_FUTURE_S = 4_102_444_800  # the year 2100

# Variables that would lead gcloud or the libraries past the rehearsal.
_FOREIGN_PREFIXES = ("CLOUDSDK_", "GOOGLE_", "GCLOUD_", "GCE_METADATA_", "AWS_", "BOTO_")
_FOREIGN = frozenset(
    {
        "ALL_PROXY",
        "all_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "NO_PROXY",
        "no_proxy",
        "SSL_CERT_DIR",
    }
)


@dataclass(frozen=True)
class Running:
    """A rehearsal cloud that runs.

    Attributes:
        state_dir: Its folder.
        pid: Its process.
        created: When that process was created, in seconds since the epoch.
        port: Its port on 127.0.0.1.
        speed: Google's times take this many times less.
        project: The rehearsed project's id.
        project_number: Its number.
        account: The account that is logged in.
        ca_file: The certificate authority its clients must trust.
    """

    state_dir: str
    pid: int
    created: float | None
    port: int
    speed: float
    project: str
    project_number: str
    account: str
    ca_file: str

    @property
    def control_url(self) -> str:
        """Base of the control API, e.g. `http://127.0.0.1:40123/rehearsal`."""
        return f"http://127.0.0.1:{self.port}/rehearsal"


def start(
    state_dir: Path,
    *,
    speed: float = DEFAULT_SPEED,
    port: int = 0,
    idle_s: float | None = None,
    empty: bool = False,
    owner_pid: int | None = None,
) -> Running:
    """Start the cloud of a folder, detached, and wait until it answers; at once if it does already.

    Args:
        state_dir: Its folder; one cloud for each.
        speed: Google's times take this many times less; of a cloud that runs already it is kept.
        port: Port on 127.0.0.1; 0 for any free one.
        idle_s: Seconds until an idle instance is stopped; None: 15 minutes at that speed.
        empty: A new project has nothing enabled and nothing staged.
        owner_pid: It ends when this process does, however that ends; None: only by `stop`.

    Raises:
        UnavailableError: It did not come up; the words are its last output.
    """
    folder = state_dir.expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _lock(folder):
        known = find(folder)
        if known is not None:
            return known
        argv = [
            sys.executable,
            "-m",
            "backends.rehearsal.cloud",
            f"--state-dir={folder}",
            f"--port={port}",
            f"--speed={speed:g}",
        ]
        if idle_s is not None:
            argv.append(f"--idle-s={idle_s:g}")
        if empty:
            argv.append("--empty")
        if owner_pid is not None:
            argv.append(f"--owner-pid={owner_pid}")
        log = folder / "cloud.log"
        log.unlink(missing_ok=True)
        process = detach(argv, log=log, env={"PYTHONUNBUFFERED": "1"})
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            known = find(folder)
            if known is not None and known.pid == process.pid:
                _write_logins(known)
                return known
            if not is_running(process.pid, process.created):
                break
            time.sleep(_POLL_S)
        end(process.pid, process.created, _STOP_S)
        raise UnavailableError(
            "The rehearsal cloud did not start.",
            words=log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else "",
            next_action=f"Read {log}.",
        )


def find(state_dir: Path) -> Running | None:
    """The cloud of a folder, if it runs and answers."""
    record = read_json(state_dir.expanduser().absolute() / _RECORD)
    if record is None:
        return None
    running = Running(**record)
    if not is_running(running.pid, running.created):
        return None
    try:
        about = control(running, "GET", "")
    except UnavailableError:
        return None
    return running if about.get("pid") == running.pid else None


def stop(state_dir: Path) -> bool:
    """Stop the cloud of a folder and all it started; what it has is kept. False if none runs."""
    folder = state_dir.expanduser().absolute()
    with _lock(folder):
        record = read_json(folder / _RECORD)
        if record is None:
            return False
        stopped = end(int(record["pid"]), record["created"], _STOP_S)
        (folder / _RECORD).unlink(missing_ok=True)
        return stopped


def control(running: Running, method: str, path: str, body: Any = None) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    """Call the control API, e.g. `control(running, "POST", "/faults", {"name": "gpu-quota-none"})`.

    Raises:
        UnavailableError: It does not answer, or refuses; the words are its own.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 (http on loopback)
        running.control_url + path,
        data=data,
        method=method,
        headers={"content-type": "application/json"},
    )
    # Its own opener: the environment may name the cloud itself as proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            value = json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        raise UnavailableError(
            f"The rehearsal cloud refused {method} {path}.",
            words=error.read().decode("utf-8", "replace"),
        ) from error
    except OSError as error:
        raise UnavailableError(
            "The rehearsal cloud does not answer.",
            words=str(error),
            next_action="Start it again.",
        ) from error
    return dict(value)


def environment(running: Running, path: str | None = None) -> dict[str, str]:
    """Every variable that gcloud, aws, the client libraries and httpx need to be in the rehearsal.

    Use it with `clean`, which also takes out what would lead past it.

    Args:
        running: The cloud.
        path: Where programs are found, behind the stub `ssh`; this process's own unless given.
    """
    folder = Path(running.state_dir)
    path = os.environ.get("PATH", "") if path is None else path
    proxy = f"http://127.0.0.1:{running.port}"
    beside = "127.0.0.1,localhost,::1"
    config = _config_dir(folder)
    return {
        "HOME": str(_home(folder)),
        # Its machines are reached by the stub ssh.
        "PATH": os.pathsep.join([str(folder / "hosts" / "clients"), path]),
        "TERM": "dumb",
        # gcloud
        "CLOUDSDK_CONFIG": str(config),
        "CLOUDSDK_CORE_PROJECT": running.project,
        "CLOUDSDK_PROXY_TYPE": "http",
        "CLOUDSDK_PROXY_ADDRESS": "127.0.0.1",
        "CLOUDSDK_PROXY_PORT": str(running.port),
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": running.ca_file,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_SHOULD_PROMPT_TO_ENABLE_API": "0",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
        # google-auth and the client libraries (over REST)
        "GOOGLE_APPLICATION_CREDENTIALS": str(config / "application_default_credentials.json"),
        "GOOGLE_CLOUD_PROJECT": running.project,
        "NO_GCE_CHECK": "true",
        # A machine of Google's own would answer at its real address, past the proxy.
        "GCE_METADATA_ROOT": f"127.0.0.1:{running.port}",
        "GCE_METADATA_HOST": f"127.0.0.1:{running.port}",
        "GCE_METADATA_IP": f"127.0.0.1:{running.port}",
        # aws and botocore: told where to go (real host names lead here too, by the proxy), with a
        # profile of their own and no metadata server
        "AWS_ENDPOINT_URL": proxy,
        "AWS_CONFIG_FILE": str(folder / "aws" / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "aws" / "credentials"),
        "AWS_REGION": AWS_REGION,
        "AWS_DEFAULT_REGION": AWS_REGION,
        "AWS_CA_BUNDLE": running.ca_file,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_STS_REGIONAL_ENDPOINTS": "regional",
        "AWS_PAGER": "",
        # requests and httpx
        "HTTP_PROXY": proxy,
        "http_proxy": proxy,
        "HTTPS_PROXY": proxy,
        "https_proxy": proxy,
        "NO_PROXY": beside,
        "no_proxy": beside,
        "REQUESTS_CA_BUNDLE": running.ca_file,
        "CURL_CA_BUNDLE": running.ca_file,
        "SSL_CERT_FILE": running.ca_file,
    }


def clean(running: Running, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """A whole environment for a child that is to be in the rehearsal.

    Args:
        running: The cloud.
        base: What to begin with, by default this process's own; what would lead past the rehearsal
            (other proxies, credentials, endpoints) is taken out.
    """
    base = os.environ if base is None else base
    kept = {
        name: value
        for name, value in base.items()
        if name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES)
    }
    return kept | environment(running, base.get("PATH", ""))


def gcloud() -> str:
    """Path of the gcloud program.

    Raises:
        CliMissingError: It is not installed. Everything that goes over REST works without it.
    """
    found = shutil.which("gcloud")
    if found is None:
        raise CliMissingError(
            "gcloud is not installed.",
            cause="The rehearsal plays Google's side only; changes are made with the real gcloud.",
            next_action="Install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install). "
            "Reading over the client libraries and REST works without it.",
        )
    return found


# ----------------------------------------------------------------------------------- inside


def write_record(folder: Path, port: int, speed: float, world: World) -> None:
    """Called by the cloud itself once it listens."""
    folder = folder.absolute()
    running = Running(
        state_dir=str(folder),
        pid=os.getpid(),
        created=created_at(os.getpid()),
        port=port,
        speed=speed,
        project=world.project,
        project_number=world.number,
        account=world.account,
        ca_file=str(folder / "certificates" / "ca.pem"),
    )
    write_json(folder / _RECORD, asdict(running))


def forget_record(folder: Path, pid: int) -> None:
    """Called by the cloud itself when it ends."""
    record = read_json(folder / _RECORD)
    if record is not None and record["pid"] == pid:
        (folder / _RECORD).unlink(missing_ok=True)


def _config_dir(folder: Path) -> Path:
    return folder / "gcloud"


def _home(folder: Path) -> Path:
    return folder / "home"


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One at a time for a folder: two who start at once get the same cloud."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _write_logins(running: Running) -> None:
    """Log the rehearsal's account in: for gcloud, and as application-default credentials.

    Written as gcloud itself writes them after `gcloud auth login` (528): a table of credentials and
    a named configuration.
    """
    from backends.rehearsal.cloud.aws.account import ACCESS_KEY, SECRET_KEY
    from backends.rehearsal.cloud.identity import GCLOUD_CLIENT_ID, REFRESH_TOKEN

    folder = Path(running.state_dir)
    _home(folder).mkdir(exist_ok=True, mode=0o700)
    (folder / "aws").mkdir(exist_ok=True, mode=0o700)
    write_text(folder / "aws" / "config", f"[default]\nregion = {AWS_REGION}\noutput = json\n")
    write_text(
        folder / "aws" / "credentials",
        f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n",
    )
    config = _config_dir(folder)
    (config / "configurations").mkdir(parents=True, exist_ok=True, mode=0o700)
    login = {
        "type": "authorized_user",
        "client_id": GCLOUD_CLIENT_ID,
        "client_secret": "rehearsal",
        "refresh_token": REFRESH_TOKEN,
    }
    adc = login | {
        "account": "",
        "quota_project_id": running.project,
        "universe_domain": "googleapis.com",
    }
    write_json(config / "application_default_credentials.json", adc)
    account = login | {
        "token_uri": "https://oauth2.googleapis.com/token",
        "revoke_uri": "https://oauth2.googleapis.com/revoke",
        "scopes": [
            "openid",
            "https://www.googleapis.com/auth/userinfo.email",
            "https://www.googleapis.com/auth/cloud-platform",
        ],
    }
    # Tokens of an earlier start may be signed by another key.
    (config / "access_tokens.db").unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(config / "credentials.db")) as table:
        table.execute(
            "CREATE TABLE IF NOT EXISTS credentials (account_id TEXT PRIMARY KEY, value BLOB)"
        )
        table.execute(
            "REPLACE INTO credentials (account_id, value) VALUES (?, ?)",
            (running.account, json.dumps(account)),
        )
        table.commit()
    (config / "credentials.db").chmod(0o600)
    # "Not a machine of Google's": gcloud believes it while the file is not ten minutes old.
    on_google = config / "gce"
    on_google.write_text("False", encoding="utf-8")
    os.utime(on_google, (_FAR_FUTURE_S, _FAR_FUTURE_S))
    (config / "active_config").write_text("default", encoding="utf-8")
    (config / "configurations" / "config_default").write_text(
        f"[core]\naccount = {running.account}\nproject = {running.project}\n", encoding="utf-8"
    )
