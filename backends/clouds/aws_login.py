"""Who we are at AWS: which of the credentials on this machine live, and what mends a dead login.

The CLI and botocore prefer keys in the environment to every profile, though what is exported there
are mostly session tokens of hours ago. Here a login that lives wins: keys in the environment are
used unless AWS says that they are dead and a profile (SSO, `aws login`, keys, a role) works; then
the CLI is run without them too.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.clouds.aws_clients import CALL_S, AwsClients, translated
from backends.clouds.aws_errors import LOGIN
from backends.core.errors import CliMissingError, CloudError, DevopsError, UnauthenticatedError

if TYPE_CHECKING:
    from backends.clouds.aws_cli import AwsCli

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")
"""The variables that carry keys; what is empty counts as not set, for the CLI and botocore."""

HOME_REGION = "us-east-1"
"""The region that is asked who we are where none is set; every account has it."""

# Many ask at once: a dead login is not asked again for each.
_REFUSED_S = 3.0
_EXPORT_S = 20.0
# `aws login` came with 2.32 (2025-11).
_CLI_WITH_LOGIN = (2, 32)


@dataclass(frozen=True)
class AwsKeys:
    """What a request is signed with, at this moment; never shown."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class AwsIdentity:
    """Whose login it is: account number, ARN and user id."""

    account: str
    arn: str
    user_id: str


@dataclass(frozen=True)
class _Settled:
    clients: AwsClients
    credentials: Any
    source: str
    without_keys: bool


class AwsLogin:
    """The login of this machine at AWS, whichever lives.

    Args:
        cli: The CLI.
        env: Provides the variables of the cloud; none in earnest.
    """

    def __init__(self, cli: AwsCli, env: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        self._cli = cli
        self._env = env
        self._settled: _Settled | None = None
        self._made: list[AwsClients] = []
        self._identity: AwsIdentity | None = None
        self._lock = asyncio.Lock()
        self._refusal: tuple[float, UnauthenticatedError] | None = None

    async def clients(self) -> AwsClients:
        """Clients that sign with the login that lives.

        Raises:
            UnauthenticatedError: There is none; `next_action` is the command that mends it.
        """
        return (await self._settle()).clients

    async def cli_env(self) -> Mapping[str, str]:
        """What the CLI is run with besides the cloud's own: dead keys are taken away."""
        return dict.fromkeys(KEYS, "") if (await self._settle()).without_keys else {}

    async def source(self) -> str:
        """Where the credentials come from, in words, e.g. `profile default (sso)`."""
        return (await self._settle()).source

    async def identity(self) -> AwsIdentity:
        """Account and ARN; asked once.

        Raises:
            UnauthenticatedError: No login lives.
        """
        clients = await self.clients()
        if self._identity is None:
            try:
                self._identity = await self._who(clients)
            except UnauthenticatedError as error:
                # A person may log in at any time: next time all is read again.
                self.forget()
                raise await self._explained(error) from error
        return self._identity

    async def keys(self) -> AwsKeys:
        """Keys that are valid now, renewed where they can be.

        Raises:
            UnauthenticatedError: No login lives.
        """
        settled = await self._settle()
        try:
            frozen = await asyncio.to_thread(
                translated, settled.credentials.get_frozen_credentials, "The login"
            )
        except UnauthenticatedError as error:
            raise await self._explained(error) from error
        return AwsKeys(frozen.access_key, frozen.secret_key, frozen.token)

    def forget(self) -> None:
        """Look again whose login lives: the one in use was refused."""
        self._settled = None
        self._identity = None

    async def close(self) -> None:
        """Close the connections of every login that was in use."""
        for clients in self._made:
            await clients.close()

    async def mend(self) -> str:
        """What mends a dead login, by the kind that this machine's profile is of, and its name.

        A profile that takes a role on with another one's login is followed to that one; keys of a
        session, which nothing renews where they are, are to be replaced where they came from.
        """
        env = {**os.environ, **await self._env()}
        name, settings, all_of_them = await asyncio.to_thread(_profile, env)
        for _ in range(len(all_of_them)):
            source = str(settings.get("source_profile") or "")
            if not source or source == name:
                break
            name, settings = source, all_of_them.get(source, {})
        suffix = f" --profile {name}" if name != "default" else ""
        if {"sso_session", "sso_start_url"} & settings.keys():
            return f"aws sso login{suffix}"
        if "login_session" in settings:
            return f"aws login{suffix}"
        if settings.get("credential_process"):
            return (
                f"what profile {name} names as its credential_process (its login has run out), "
                f"then: aws sts get-caller-identity{suffix}"
            )
        return await self._mend_keys(env, name, settings)

    async def _mend_keys(
        self, env: Mapping[str, str], name: str, settings: Mapping[str, Any]
    ) -> str:
        """What mends keys: those of a session are exported anew, others configured."""
        suffix = f" --profile {name}" if name != "default" else ""
        if settings.get("aws_session_token"):
            return (
                f"aws configure set aws_session_token ...{suffix} with new keys of the session "
                f"(those of profile {name} are of one that has ended)"
            )
        try:
            version = await self._cli.version()
        except DevopsError:
            return LOGIN
        # Version 1 has no login of its own.
        new = f"aws login{suffix}" if version >= _CLI_WITH_LOGIN else f"aws configure{suffix}"
        if env.get("AWS_SESSION_TOKEN") and not settings:
            return f"{new} (the keys in this server's environment are of a session that has ended)"
        return new

    # ------------------------------------------------------------------------- inside

    async def _settle(self) -> _Settled:
        async with self._lock:
            if self._settled is None:
                if self._refusal is not None and time.monotonic() < self._refusal[0]:
                    raise self._refusal[1]
                try:
                    self._settled = await self._choose()
                except UnauthenticatedError as error:
                    explained = await self._explained(error)
                    self._refusal = (time.monotonic() + _REFUSED_S, explained)
                    raise explained from error
                self._refusal = None
            return self._settled

    async def _choose(self) -> _Settled:
        """The credentials to use.

        Raises:
            UnauthenticatedError: None lives.
        """
        own = await self._env()
        env = {**os.environ, **own}
        if not (env.get(KEYS[0]) and env.get(KEYS[1])):
            return await self._of_profile(env, own, without_keys=False)
        session = await asyncio.to_thread(_session, env)
        credentials = _static(env)
        _sign_with(session, credentials)
        clients = self._clients(own, session)
        try:
            self._identity = await self._who(clients)
        except UnauthenticatedError as dead:
            try:
                settled = await self._of_profile(env, own, without_keys=True)
                self._identity = await self._who(settled.clients)
            except UnauthenticatedError as error:
                # Both are dead: the keys' own words, unless there is a profile to mend.
                raise (dead if "no credentials" in error.message else error) from error
            return settled
        return _Settled(clients, credentials, "keys in the environment", False)

    async def _of_profile(
        self, env: Mapping[str, str], own: Mapping[str, str], *, without_keys: bool
    ) -> _Settled:
        session = await asyncio.to_thread(_session, env)
        profile, settings, _ = await asyncio.to_thread(_profile, env)
        found = await asyncio.to_thread(translated, lambda: _chain(session, env), "The login")
        if found is None and settings:
            found = await self._exported(without_keys=without_keys)
        if found is None and "login_session" in settings:
            raise CliMissingError(
                f"Profile {profile} was made by aws login, which this machine's aws cannot use.",
                cause="Only version 2 of the AWS CLI, from 2.32 on, reads such a login.",
                next_action="Ask the person to put AWS CLI 2.32 or newer first on PATH "
                "(https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html).",
            )
        if found is None:
            raise UnauthenticatedError("There are no credentials for AWS on this machine.")
        _sign_with(session, found)
        kind = str(getattr(found, "method", "") or "chain")
        return _Settled(
            self._clients(own, session), found, f"profile {profile} ({kind})", without_keys
        )

    def _clients(self, own: Mapping[str, str], session: Any) -> AwsClients:  # noqa: ANN401
        made = AwsClients(own, session)
        self._made.append(made)
        return made

    async def _who(self, clients: AwsClients) -> AwsIdentity:
        answer = await clients.run(
            "sts",
            region_of({**os.environ, **await self._env()}) or HOME_REGION,
            lambda client: client.get_caller_identity(),
            "aws sts get-caller-identity",
            within_s=CALL_S,
        )
        return AwsIdentity(str(answer["Account"]), str(answer["Arn"]), str(answer["UserId"]))

    async def _exported(self, *, without_keys: bool) -> Any:  # noqa: ANN401 (botocore's)
        """Credentials of a kind that only the CLI can read, such as those of `aws login`.

        Version 1 has no such command; then there are none.
        """
        from botocore.credentials import RefreshableCredentials  # type: ignore[import-untyped]

        loop = asyncio.get_running_loop()

        def again() -> Mapping[str, str]:
            work = asyncio.run_coroutine_threadsafe(self._export(without_keys=without_keys), loop)
            return work.result(_EXPORT_S + 5)

        try:
            metadata = await self._export(without_keys=without_keys)
        except CliMissingError:
            return None
        if not metadata.get("access_key"):
            return None
        return RefreshableCredentials.create_from_metadata(
            metadata, refresh_using=again, method="aws-cli"
        )

    async def _export(self, *, without_keys: bool) -> Mapping[str, str]:
        """What `aws configure export-credentials` gives, in botocore's form; empty: nothing.

        Raises:
            UnauthenticatedError: The login has expired.
        """
        from backends.clouds.aws_errors import error_of

        taken = dict.fromkeys(KEYS, "") if without_keys else {}
        finished = await self._cli.bare(
            ["aws", "configure", "export-credentials", "--format", "process"],
            timeout_s=_EXPORT_S,
            env=taken,
        )
        if finished.code != 0:
            error = error_of(finished.stderr, "aws configure export-credentials")
            if isinstance(error, UnauthenticatedError):
                raise error
            return {}
        try:
            keys = json.loads(finished.stdout)
            return {
                "access_key": str(keys["AccessKeyId"]),
                "secret_key": str(keys["SecretAccessKey"]),
                "token": str(keys.get("SessionToken") or ""),
                "expiry_time": str(keys.get("Expiration") or "2999-01-01T00:00:00Z"),
            }
        except (ValueError, KeyError, TypeError):
            # Its words may be keys: they are not repeated.
            raise CloudError("aws configure export-credentials printed no credentials.") from None

    async def _explained(self, error: UnauthenticatedError) -> UnauthenticatedError:
        """The one error of a dead login: what is dead, and the one command that mends it."""
        return UnauthenticatedError(
            "AWS does not accept the login of this machine."
            if error.words
            else "There are no credentials for AWS on this machine.",
            words=error.words,
            cause=error.cause or "Nobody has logged in here.",
            next_action=f"Ask the person to run: {await self.mend()}",
        )


def region_of(env: Mapping[str, str]) -> str | None:
    """The region that variables name; version 1 of the CLI knows the second one only."""
    return env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or None


@functools.cache
def _loader() -> Any:  # noqa: ANN401 (botocore's)
    """The descriptions of AWS's services, read once; SageMaker's alone is 2 MB."""
    from botocore.loaders import create_loader  # type: ignore[import-untyped]

    return create_loader()


def _session(env: Mapping[str, str]) -> Any:  # noqa: ANN401 (botocore's)
    """A session that reads the files and the profile that these variables name. Blocks."""
    import botocore.session  # type: ignore[import-untyped]

    session = botocore.session.Session()
    session.register_component("data_loader", _loader())
    session.user_agent_extra = "vllm-devops"
    for variable, name in (
        ("config_file", "AWS_CONFIG_FILE"),
        ("credentials_file", "AWS_SHARED_CREDENTIALS_FILE"),
        ("ca_bundle", "AWS_CA_BUNDLE"),
    ):
        if env.get(name):
            session.set_config_variable(variable, env[name])
    profile = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE")
    if profile:
        session.set_config_variable("profile", profile)
    return session


def _profile(
    env: Mapping[str, str],
) -> tuple[str, Mapping[str, Any], Mapping[str, Mapping[str, Any]]]:
    """The profile in use, its settings (none where it does not exist), and all profiles. Blocks."""
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

    session = _session(env)
    name = str(session.get_config_variable("profile") or "default")
    try:
        profiles = session.full_config.get("profiles", {})
    except BotoCoreError:
        return name, {}, {}
    return name, profiles.get(name, {}), profiles


def _static(env: Mapping[str, str]) -> Any:  # noqa: ANN401 (botocore's)
    from botocore.credentials import Credentials

    token = env.get("AWS_SESSION_TOKEN") or env.get("AWS_SECURITY_TOKEN") or None
    return Credentials(env[KEYS[0]], env[KEYS[1]], token, method="env")


def _chain(session: Any, env: Mapping[str, str]) -> Any:  # noqa: ANN401 (botocore's)
    """What botocore finds without the environment's keys; None: nothing it can read. Blocks."""
    from botocore.credentials import create_credential_resolver
    from botocore.exceptions import (
        CredentialRetrievalError,
        MissingDependencyException,
        UnknownCredentialError,
    )

    resolver = create_credential_resolver(session)
    left_out = {"env"}
    if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        left_out.add("iam-role")
    for name in left_out & {provider.METHOD for provider in resolver.providers}:
        resolver.remove(name)
    try:
        return resolver.load_credentials()
    except (MissingDependencyException, UnknownCredentialError, CredentialRetrievalError):
        return None


def _sign_with(session: Any, credentials: Any) -> None:  # noqa: ANN401 (botocore's)
    """Let a session use these credentials and look for no others."""
    from botocore.credentials import CredentialProvider, CredentialResolver

    class Given(CredentialProvider):  # type: ignore[misc]
        METHOD = "given"

        def load(self) -> Any:  # noqa: ANN401
            return credentials

    session.register_component("credential_provider", CredentialResolver([Given()]))
