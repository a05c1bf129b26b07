"""Who is asking: access tokens, identity tokens, and the roles that IAM policies give."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World

# The audience of a person's identity token: gcloud's own client id, which Cloud Run accepts.
GCLOUD_CLIENT_ID = "32555940559.apps.googleusercontent.com"
REFRESH_TOKEN = "1//rehearsal-refresh-token"  # noqa: S105 (opens nothing but the rehearsal)

_ACCESS_PREFIX = "ya29.rehearsal."
_ISSUER = "https://accounts.google.com"

# Roles that may call any private Cloud Run service of the project, and those that may call one.
_PROJECT_INVOKERS = {"roles/owner", "roles/editor", "roles/run.admin", "roles/run.invoker"}
_INVOKERS = {"roles/run.invoker", "roles/run.admin"}


class TokenError(Exception):
    """A token that is not valid; the text says why."""


class Identity:
    """Issues and checks tokens.

    Args:
        folder: Where the signing key is kept.
        world: The project and its policies.
    """

    def __init__(self, folder: Path, world: World) -> None:
        self._world = world
        self._key = _load_key(folder / "tokens.key")
        self._secret = hashlib.sha256(
            self._key.private_bytes(
                serialization.Encoding.DER,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        ).digest()

    # ------------------------------------------------------------------------- access tokens

    def access_token(self, account: str) -> tuple[str, int]:
        """A new access token and the seconds it lives."""
        lifetime_s = self._world.knobs.token_lifetime_s
        issued = time.time()
        claims = _encode(
            json.dumps({"sub": account, "iat": issued, "exp": issued + lifetime_s}).encode()
        )
        return f"{_ACCESS_PREFIX}{claims}.{self._seal(claims)}", max(int(lifetime_s), 1)

    def account_of(self, token: str) -> str:
        """The account an access token stands for.

        Raises:
            TokenError: It is not ours, expired, or withdrawn.
        """
        claims, _, seal = token.removeprefix(_ACCESS_PREFIX).partition(".")
        if not token.startswith(_ACCESS_PREFIX) or not hmac.compare_digest(
            seal, self._seal(claims)
        ):
            raise TokenError("unknown")
        said = json.loads(_decode(claims))
        self._check_time(said)
        return str(said["sub"])

    # ------------------------------------------------------------------------- identity tokens

    def identity_token(self, account: str, audience: str) -> str:
        """A signed JSON web token for one audience."""
        issued = int(time.time())
        claims = {
            "iss": _ISSUER,
            "azp": GCLOUD_CLIENT_ID,
            "aud": audience,
            "sub": str(int(hashlib.sha256(account.encode()).hexdigest()[:16], 16)),
            "email": account,
            "email_verified": True,
            "iat": issued,
            "exp": issued + int(self._world.knobs.token_lifetime_s),
        }
        head = _encode(json.dumps({"alg": "RS256", "kid": "rehearsal", "typ": "JWT"}).encode())
        body = f"{head}.{_encode(json.dumps(claims).encode())}"
        signature = self._key.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{body}.{_encode(signature)}"

    def claims_of(self, token: str) -> Json:
        """The claims of an identity token.

        Raises:
            TokenError: It is not ours, damaged or expired.
        """
        try:
            body, _, signature = token.rpartition(".")
            self._key.public_key().verify(
                _decode(signature), body.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
            claims = json.loads(_decode(body.split(".")[1]))
        except (ValueError, IndexError, InvalidSignature) as error:
            raise TokenError("unknown") from error
        self._check_time(claims)
        return dict(claims)

    def _check_time(self, claims: Json) -> None:
        if float(claims["exp"]) < time.time():
            raise TokenError("expired")
        if float(claims["iat"]) < self._world.knobs.tokens_valid_from:
            raise TokenError("withdrawn")

    def _seal(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()[:32]


# ----------------------------------------------------------------------------------- roles


def member_of(account: str) -> str:
    """An account as IAM policies name it."""
    kind = "serviceAccount" if account.endswith(".gserviceaccount.com") else "user"
    return f"{kind}:{account}"


def roles_on(world: World, account: str, *resources: str) -> set[str]:
    """The roles an account has on any of these resources or on the project.

    Args:
        world: The project.
        account: An e-mail; empty for nobody, who has what `allUsers` has.
        resources: Names of policies, e.g. `b/BUCKET` or `projects/P/secrets/S`.
    """
    members = {"allUsers"}
    if account:
        members |= {member_of(account), "allAuthenticatedUsers"}
        # An owner's or editor's rights on old-style bucket policies.
    found: set[str] = set()
    for resource in (*resources, f"projects/{world.project}"):
        for binding in world.policies.get(resource, {}).get("bindings", []):
            if members & set(binding.get("members", [])):
                found.add(str(binding["role"]))
    return found


def may_invoke(world: World, account: str, service_policy: str) -> bool:
    """Whether an account (empty: anybody) may call a Cloud Run service."""
    members = {"allUsers"}
    if account:
        members |= {member_of(account), "allAuthenticatedUsers"}
    for binding in world.policies.get(service_policy, {}).get("bindings", []):
        if binding["role"] in _INVOKERS and members & set(binding.get("members", [])):
            return True
    project = world.policies.get(f"projects/{world.project}", {})
    return any(
        binding["role"] in _PROJECT_INVOKERS and members & set(binding.get("members", []))
        for binding in project.get("bindings", [])
    )


def _load_key(path: Path) -> rsa.RSAPrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        if isinstance(key, rsa.RSAPrivateKey):
            return key
    except (FileNotFoundError, ValueError):
        pass
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return key


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
