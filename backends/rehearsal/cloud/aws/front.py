"""AWS's front: who asks, with what right, in which region; then the service itself."""

from __future__ import annotations

import fnmatch
import inspect
import re
import sys
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.account import (
    ACCESS_KEY,
    ACCOUNT_ID,
    DEAD_KEY,
    USER_ARN,
    Account,
)
from backends.rehearsal.cloud.aws.catalogue import REGIONS
from backends.rehearsal.cloud.aws.wire import (
    AwsError,
    Call,
    Protocol,
    Service,
    answer,
    operation_of,
    params_of,
    protocol_of,
    refused,
)
from backends.rehearsal.cloud.web import Request, Response

if TYPE_CHECKING:
    from backends.rehearsal.cloud.faults import RequestFault

_HOSTS = re.compile(r"[\w.-]+\.(amazonaws\.com(\.cn)?|api\.aws|aws\.dev)")
_CREDENTIAL = re.compile(r"Credential=([^/]+)/\d{8}/([\w-]+)/([\w-]+)/aws4_request")
_REGION_IN_HOST = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d)\.")
# One place for the world, wherever the caller is.
_EVERYWHERE = {"iam", "sts", "pricing"}

# Which code says that a key is unknown or a token has expired, and with which status.
_UNKNOWN_KEY: dict[Protocol, tuple[str, int]] = {
    "json": ("UnrecognizedClientException", 400),
    "rest": ("UnrecognizedClientException", 403),
    "query": ("InvalidClientTokenId", 403),
    "ec2": ("AuthFailure", 401),
    "xml": ("InvalidAccessKeyId", 403),
}
_EXPIRED: dict[Protocol, tuple[str, int]] = {
    "json": ("ExpiredTokenException", 400),
    "rest": ("ExpiredTokenException", 403),
    "query": ("ExpiredToken", 403),
    "ec2": ("RequestExpired", 400),
    "xml": ("ExpiredToken", 400),
}


# Where S3's permission is not called as the operation.
_ACTIONS = {
    "ListObjectsV2": "ListBucket",
    "ListObjects": "ListBucket",
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
}


class Front:
    """Answers every request that is meant for AWS.

    Args:
        account: The account.
        services: What is played.
    """

    def __init__(self, account: Account, services: Iterable[Service]) -> None:
        self._account = account
        self._services = {service.name: service for service in services}

    @staticmethod
    def serves(host: str) -> bool:
        """Whether a host name is AWS's."""
        return _HOSTS.fullmatch(host) is not None

    async def answer(self, request: Request) -> Response:
        """Answer one request as the service would."""
        protocol: Protocol = "json"
        try:
            service, region = self._whom(request)
            protocol = protocol_of(request, service)
            self._place(request, service, region, protocol)
            self._admit(request, protocol)
            operation = operation_of(request)
            call = Call(region, operation, params_of(request, protocol), request)
            handler = service.handlers.get(operation)
            if handler is None:
                raise AwsError(
                    "UnknownOperationException",
                    f"{operation or 'This request'} of {service.name} is not part of the "
                    "rehearsal.",
                )
            self._allow(service, protocol, call)
            made = handler(call)
            if inspect.isawaitable(made):
                made = await made
            return made if isinstance(made, Response) else answer(service, call, made)
        except AwsError as error:
            return refused(protocol, error)
        except Exception as error:  # noqa: BLE001 (a fault of the rehearsal must show as one)
            traceback.print_exc(file=sys.stderr)
            failure = AwsError("InternalFailure", f"The rehearsal cloud failed: {error!r}", 500)
            return refused(protocol, failure)

    def faulty(self, request: Request, fault: RequestFault) -> Response | None:
        """The answer of a fault that names an error of AWS; None where it does not."""
        if not fault.code:
            return None
        try:
            protocol = protocol_of(request, self._whom(request)[0])
        except AwsError:
            protocol = "json"
        text = fault.body if isinstance(fault.body, str) else f"Fault {fault.id} of the rehearsal."
        return refused(protocol, AwsError(fault.code, text, fault.status))

    # ------------------------------------------------------------------------- inside

    def _whom(self, request: Request) -> tuple[Service, str]:
        """The service and the region that a request is signed for.

        Raises:
            AwsError: It is not signed, or for a service that is not played.
        """
        found = _CREDENTIAL.search(request.headers.get("authorization", ""))
        if found is None:
            raise AwsError(
                "MissingAuthenticationTokenException", "Missing Authentication Token", 403
            )
        service = self._services.get(found[3])
        if service is None:
            raise AwsError(
                "UnknownOperationException", f"{found[3]} is not part of the rehearsal.", 404
            )
        return service, found[2]

    def _place(self, request: Request, service: Service, region: str, protocol: Protocol) -> None:
        """Check that a region is what the host says, and one of the account's.

        Raises:
            AwsError: It is not.
        """
        host = _REGION_IN_HOST.search(request.host) if self.serves(request.host) else None
        if host is not None and region != host[1]:
            code = "InvalidSignatureException" if protocol == "json" else "SignatureDoesNotMatch"
            raise AwsError(
                code, f"Credential should be scoped to a valid region, not '{region}'. ", 403
            )
        if service.name not in _EVERYWHERE and region not in REGIONS:
            # A region that is not enabled for the account knows no key of it.
            code, status = _UNKNOWN_KEY[protocol]
            raise AwsError(code, "The security token included in the request is invalid.", status)

    def _admit(self, request: Request, protocol: Protocol) -> None:
        """Check the key.

        Raises:
            AwsError: It is unknown or has expired.
        """
        found = _CREDENTIAL.search(request.headers.get("authorization", ""))
        key = found[1] if found else ""
        if key == DEAD_KEY or (key == ACCESS_KEY and self._account.now.expired):
            code, status = _EXPIRED[protocol]
            raise AwsError(code, "The security token included in the request is expired", status)
        if key != ACCESS_KEY:
            code, status = _UNKNOWN_KEY[protocol]
            raise AwsError(code, "The security token included in the request is invalid.", status)
        request.account = USER_ARN

    def _allow(self, service: Service, protocol: Protocol, call: Call) -> None:
        """Check the right to do it.

        Raises:
            AwsError: AccessDenied.
        """
        action = f"{service.iam}:{_ACTIONS.get(call.operation, call.operation)}"
        if not any(fnmatch.fnmatchcase(action, item) for item in self._account.now.denied):
            return
        name = next(
            (str(value) for key, value in call.params.items() if key.endswith("Name") and value),
            "*",
        )
        resource = f"arn:aws:{service.iam}:{call.region}:{ACCOUNT_ID}:{name}"
        code = {"query": "AccessDenied", "xml": "AccessDenied", "ec2": "UnauthorizedOperation"}.get(
            protocol, "AccessDeniedException"
        )
        raise AwsError(
            code,
            f"User: {USER_ARN} is not authorized to perform: {action} on resource: {resource} "
            f"because no identity-based policy allows the {action} action",
            403 if protocol in {"query", "ec2", "xml"} else 400,
        )
