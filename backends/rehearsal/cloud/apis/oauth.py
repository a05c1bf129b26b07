"""Google's token endpoints: access and identity tokens for the rehearsal's account."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from backends.rehearsal.cloud.identity import GCLOUD_CLIENT_ID, REFRESH_TOKEN, TokenError
from backends.rehearsal.cloud.web import Api, Json, Request, Response

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

_SCOPE = (
    "openid https://www.googleapis.com/auth/userinfo.email "
    "https://www.googleapis.com/auth/cloud-platform"
)


def api(cloud: Cloud) -> Api:
    """The token endpoint, tokeninfo and userinfo."""
    world, identity = cloud.world, cloud.identity

    def token(request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs(request.raw().decode()).items()}
        if "assertion" in form:
            return _for_service_account(form["assertion"])
        if world.knobs.login == "expired":
            return _refused("invalid_grant", "Token has been expired or revoked.")
        if world.knobs.login == "reauth":
            return _refused("invalid_grant", "reauth related error (invalid_rapt)", "invalid_rapt")
        if form.get("refresh_token") != REFRESH_TOKEN:
            return _refused("invalid_grant", "Bad Request")
        access, lifetime_s = identity.access_token(world.account)
        return Response(
            body={
                "access_token": access,
                "expires_in": lifetime_s,
                "scope": _SCOPE,
                "token_type": "Bearer",
                "id_token": identity.identity_token(world.account, GCLOUD_CLIENT_ID),
            }
        )

    def _for_service_account(assertion: str) -> Response:
        try:
            part = assertion.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        except (ValueError, IndexError):
            return _refused("invalid_grant", "Invalid JWT Signature.")
        account = str(claims.get("iss", ""))
        if account not in world.service_accounts:
            return _refused("invalid_grant", "Invalid grant: account not found")
        if audience := claims.get("target_audience"):
            return Response(body={"id_token": identity.identity_token(account, str(audience))})
        access, lifetime_s = identity.access_token(account)
        return Response(
            body={"access_token": access, "expires_in": lifetime_s, "token_type": "Bearer"}
        )

    def token_info(request: Request) -> Response:
        try:
            if access := request.value("access_token"):
                account = identity.account_of(access)
                left = int(world.knobs.token_lifetime_s)
                return Response(
                    body={
                        "azp": GCLOUD_CLIENT_ID,
                        "aud": GCLOUD_CLIENT_ID,
                        "scope": _SCOPE,
                        "exp": str(int(time.time()) + left),
                        "expires_in": str(left),
                        "email": account,
                        "email_verified": "true",
                    }
                )
            claims = identity.claims_of(request.value("id_token"))
        except TokenError:
            return Response(400, {"error_description": "Invalid Value"})
        return Response(body={name: str(value) for name, value in claims.items()})

    def user_info(request: Request) -> Response:
        held = request.headers.get("authorization", "").partition(" ")[2]
        try:
            account = identity.account_of(held)
        except TokenError:
            return Response(401, {"error": "invalid_request"})
        return Response(body={"email": account, "verified_email": True, "sub": "1"})

    made = Api(
        "oauth2.googleapis.com",
        "OAuth 2.0",
        hosts=r"oauth2\.googleapis\.com|accounts\.google\.com|www\.googleapis\.com|openidconnect\."
        r"googleapis\.com",
        open_to_all=True,
    )
    made.add("POST", r"/(?:token|o/oauth2/token|oauth2/v4/token)", token)
    made.add("GET", r"/(?:tokeninfo|oauth2/v[123]/tokeninfo)", token_info)
    made.add("POST", r"/(?:tokeninfo|oauth2/v[123]/tokeninfo)", token_info)
    made.add("GET", r"/(?:v1/userinfo|oauth2/v[123]/userinfo)", user_info)
    return made


def _refused(error: str, description: str, subtype: str = "") -> Response:
    body: Json = {"error": error, "error_description": description}
    if subtype:
        body["error_subtype"] = subtype
    return Response(400, body)
