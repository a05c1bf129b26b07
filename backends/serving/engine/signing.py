"""The second wire: SageMaker's `InvokeEndpointWithResponseStream`, signed with Signature Version 4.

The request's body is what the container would get directly (vLLM takes chat bodies on
`/invocations`); around it stand AWS's path, headers and signature. A signature holds for five
minutes from its date, so requests are signed shortly before they are sent, in a quiet moment.
botocore signs, imported on first use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import quote

SIGNATURE_FRESH_S = 120.0
"""AWS takes a signature for 300 s; clocks differ, and a request may wait for its turn."""


@dataclass(frozen=True)
class AwsCredentials:
    """What a request is signed with; never shown."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> list[str]:
        """What must not appear in anything that is shown."""
        return [self.secret_key, *([self.token] if self.token else [])]


CredentialProvider = Callable[[], Awaitable[AwsCredentials]]
"""Returns credentials that are valid now; asked again every few minutes of a long run."""


@dataclass(frozen=True)
class SageMakerWire:
    """How to reach a SageMaker endpoint.

    Args:
        endpoint_name: The endpoint's name.
        region: Of the signature, such as `us-west-2`.
        inference_component: Which component of the endpoint, where it has several.
        target_variant: Which production variant, where it has several.
    """

    endpoint_name: str
    region: str
    inference_component: str | None = None
    target_variant: str | None = None

    @property
    def path(self) -> str:
        """The path of a streamed invocation."""
        return f"/endpoints/{quote(self.endpoint_name, safe='')}/invocations-response-stream"


def sagemaker_url(region: str) -> str:
    """Return the address of SageMaker's runtime in a region (China has a suffix of its own)."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://runtime.sagemaker.{region}.{suffix}"


class Signer:
    """Signs requests to one endpoint.

    Args:
        wire: Which.
        url: Where its invocations go, path included.
    """

    def __init__(self, wire: SageMakerWire, url: str) -> None:
        self._wire = wire
        self._url = url
        self._headers = {
            "Content-Type": "application/json",
            "X-Amzn-SageMaker-Accept": "text/event-stream",
        }
        if wire.inference_component:
            self._headers["X-Amzn-SageMaker-Inference-Component"] = wire.inference_component
        if wire.target_variant:
            self._headers["X-Amzn-SageMaker-Target-Variant"] = wire.target_variant

    def sign(self, body: bytes, credentials: AwsCredentials) -> dict[str, str]:
        """Return the headers that sign a body; costs some 0.2 ms."""
        from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
        from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
        from botocore.credentials import Credentials  # type: ignore[import-untyped]

        request = AWSRequest("POST", self._url, headers=dict(self._headers), data=body)
        keys = Credentials(credentials.access_key, credentials.secret_key, credentials.token)
        SigV4Auth(keys, "sagemaker", self._wire.region).add_auth(request)
        return dict(request.headers.items())

    def lines(self, body: bytes, credentials: AwsCredentials) -> bytes:
        """Return the same as header lines."""
        signed = self.sign(body, credentials)
        return "".join(f"{name}: {value}\r\n" for name, value in signed.items()).encode()
