"""AWS's protocols from the server's side: requests in, answers, errors and event frames out.

What a client sends is told apart as AWS does it: JSON by `X-Amz-Target`, query by `Action` in a
form, REST by its path. Answers are plain dictionaries with AWS's own names, which for query become
XML. Times are seconds since the epoch in JSON; handlers of query services write text.
"""

from __future__ import annotations

import binascii
import json
import re
import struct
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from backends.rehearsal.cloud.web import Json, Request, Response

Protocol = Literal["json", "query", "ec2", "rest", "xml"]
_JSON = {"json", "rest"}


class AwsError(Exception):
    """A refusal in AWS's form.

    Args:
        code: E.g. `ValidationException`.
        message: AWS's sentence.
        status: HTTP status.
        fields: Further fields of a JSON error.
    """

    def __init__(
        self, code: str, message: str, status: int = 400, fields: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.fields = dict(fields or {})


@dataclass
class Call:
    """One request to a service, taken apart.

    Attributes:
        region: The region of its signature.
        operation: E.g. `CreateEndpoint`.
        params: Its parameters, by AWS's names; of a query service all text.
        request: As it came.
    """

    region: str
    operation: str
    params: Json
    request: Request

    def text(self, name: str) -> str:
        """A parameter as text; empty where it was not given."""
        return str(self.params.get(name) or "")

    def number(self, name: str, default: int) -> int:
        """A parameter as a number."""
        return int(self.params.get(name) or default)


Answer = Json | Response
Handler = Callable[[Call], Answer] | Callable[[Call], Awaitable[Answer]]


@dataclass
class Service:
    """One AWS service.

    Attributes:
        name: As signatures name it, e.g. `servicequotas`.
        protocol: How it is spoken to.
        iam: Its prefix in permissions, e.g. `servicequotas`.
        namespace: Of its XML.
        handlers: By operation.
    """

    name: str
    protocol: Protocol
    iam: str
    namespace: str = ""
    handlers: dict[str, Handler] = field(default_factory=dict)

    def on(self, **handlers: Handler) -> Service:
        """Register handlers by their operation's name."""
        self.handlers |= handlers
        return self


# ------------------------------------------------------------------------------ requests

_TARGET = re.compile(r"[\w.]+\.(\w+)$")
_ENDPOINT = re.compile(r"/endpoints/([^/]+)/(invocations|invocations-response-stream)$")
_REST = {
    "invocations": "InvokeEndpoint",
    "invocations-response-stream": "InvokeEndpointWithResponseStream",
}


_BUCKET_HOST = re.compile(r"(.+)\.s3[.-][\w.-]*amazonaws\.com(?:\.cn)?$")
_OF_OBJECTS = {"GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
_OF_BUCKETS = {"PUT": "CreateBucket", "HEAD": "HeadBucket", "DELETE": "DeleteBucket"}


def bucket_and_key(request: Request) -> tuple[str, str]:
    """The bucket and the object that a request to S3 names, in its host or its path."""
    found = _BUCKET_HOST.match(request.host)
    if found:
        return found[1], request.path.lstrip("/")
    bucket, _, key = request.path.lstrip("/").partition("/")
    return bucket, key


def _s3_operation(request: Request) -> str:
    """The operation of S3 that a request asks for, by its method, path and query."""
    bucket, key = bucket_and_key(request)
    if not bucket:
        return "ListBuckets"
    asked = {name for name, _ in parse_qsl(request.raw_query, keep_blank_values=True)}
    return _of_object(request, asked) if key else _of_bucket(request.method, asked)


def _of_bucket(method: str, asked: set[str]) -> str:
    if method == "POST":
        return "DeleteObjects"
    if method == "GET":
        listing = "ListObjectsV2" if "list-type" in asked else "ListObjects"
        return "GetBucketLocation" if "location" in asked else listing
    return _OF_BUCKETS.get(method, "")


def _of_object(request: Request, asked: set[str]) -> str:
    parts = "uploadId" in asked
    if request.method == "PUT":
        copy = "x-amz-copy-source" in request.headers
        return "UploadPart" if parts else "CopyObject" if copy else "PutObject"
    if request.method == "POST":
        return "CompleteMultipartUpload" if parts else "CreateMultipartUpload"
    return "AbortMultipartUpload" if parts else _OF_OBJECTS.get(request.method, "")


def signed(request: Request) -> bool:
    """Whether a request is signed for AWS, whichever host it was sent to."""
    return request.headers.get("authorization", "").startswith("AWS4-HMAC-SHA256")


def operation_of(request: Request) -> str:
    """The operation a request asks for; empty where it cannot be told."""
    if "/s3/aws4_request" in request.headers.get("authorization", ""):
        return _s3_operation(request)
    target = _TARGET.search(request.headers.get("x-amz-target", ""))
    if target:
        return target[1]
    rest = _ENDPOINT.search(request.raw_path)
    if rest:
        return _REST[rest[2]]
    if "x-www-form-urlencoded" in request.headers.get("content-type", ""):
        return dict(parse_qsl(request.raw().decode())).get("Action", "")
    return ""


def protocol_of(request: Request, service: Service) -> Protocol:
    """How a request is spoken: SageMaker's control plane is JSON, its runtime is REST."""
    return "rest" if _ENDPOINT.search(request.raw_path) else service.protocol


def params_of(request: Request, protocol: Protocol) -> Json:
    """The parameters of a request.

    Raises:
        AwsError: They cannot be read.
    """
    if protocol == "xml":
        bucket, key = bucket_and_key(request)
        return {"Bucket": bucket, "Key": key}
    raw = request.raw()
    if protocol == "json":
        try:
            value = json.loads(raw or b"{}")
        except ValueError:
            raise AwsError("SerializationException", "Unexpected end of JSON input") from None
        if not isinstance(value, dict):
            raise AwsError("SerializationException", "Start of structure expected")
        return value
    if protocol == "rest":
        rest = _ENDPOINT.search(request.path)
        return {"EndpointName": rest[1] if rest else ""}
    return _unflattened(parse_qsl(raw.decode(), keep_blank_values=True))


def _unflattened(pairs: Sequence[tuple[str, str]]) -> Json:
    """`Tags.member.1.Key=a` as `{"Tags": [{"Key": "a"}]}`."""
    tree: Json = {}
    for name, value in pairs:
        parts = [part for part in name.split(".") if part != "member"]
        at = tree
        for part in parts[:-1]:
            at = at.setdefault(part, {})
        at[parts[-1]] = value
    return {key: _lists(value) for key, value in tree.items()}


def _lists(value: Any) -> Any:  # noqa: ANN401 (a tree)
    if not isinstance(value, dict):
        return value
    if value and all(key.isdecimal() for key in value):
        return [_lists(value[key]) for key in sorted(value, key=int)]
    return {key: _lists(item) for key, item in value.items()}


# ------------------------------------------------------------------------------ answers


def answer(service: Service, call: Call, result: Json) -> Response:
    """A result in the service's protocol."""
    request_id = str(uuid.uuid4())
    headers = {"x-amzn-requestid": request_id, "content-type": "application/x-amz-json-1.1"}
    if service.protocol in _JSON:
        return Response(200, json.dumps(result).encode(), headers)
    name = call.operation
    if service.protocol == "ec2":
        body = f"<requestId>{request_id}</requestId>{_xml(result, 'item')}"
    else:
        inner = f"<{name}Result>{_xml(result, 'member')}</{name}Result>"
        body = f"{inner}<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    text = f'<{name}Response xmlns="{service.namespace}">{body}</{name}Response>'
    return Response(200, text.encode(), headers | {"content-type": "text/xml"})


def refused(protocol: Protocol, error: AwsError) -> Response:
    """A refusal in the service's protocol."""
    request_id = str(uuid.uuid4())
    headers = {"x-amzn-requestid": request_id}
    if protocol in _JSON:
        body = {"__type": error.code, "message": error.message, "Message": error.message}
        return Response(
            error.status,
            json.dumps(body | error.fields).encode(),
            headers
            | {"content-type": "application/x-amz-json-1.1", "x-amzn-errortype": error.code},
        )
    code, message = escape(error.code), escape(error.message)
    if protocol == "xml":
        headers |= {name: str(value) for name, value in error.fields.items()}
        text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    elif protocol == "ec2":
        text = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error>"
            f"</Errors><RequestID>{request_id}</RequestID></Response>"
        )
    else:
        kind = "Sender" if error.status < 500 else "Receiver"
        text = (
            f"<ErrorResponse><Error><Type>{kind}</Type><Code>{code}</Code><Message>{message}"
            f"</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
    return Response(error.status, text.encode(), headers | {"content-type": "text/xml"})


def _xml(value: Any, item: str) -> str:  # noqa: ANN401 (a tree)
    if isinstance(value, dict):
        return "".join(f"<{key}>{_xml(inner, item)}</{key}>" for key, inner in value.items())
    if isinstance(value, list):
        return "".join(f"<{item}>{_xml(inner, item)}</{item}>" for inner in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape(str(value))


def iso(seconds: float) -> str:
    """A time as query services write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def page(
    call: Call, items: list[Any], key: str, most: int, *, next_name: str = "NextToken"
) -> Json:
    """One page of a list.

    Args:
        call: The request, with `MaxResults`/`maxResults` and a token.
        items: All of them.
        key: Where they stand in the answer.
        most: Most of them on a page, also where more are asked for.
        next_name: The name of the token, in the request and in the answer.
    """
    asked = (
        call.params.get("MaxResults") or call.params.get("maxResults") or call.params.get("limit")
    )
    size = min(int(asked or most), most)
    given = call.text(next_name)
    if given and not given.isdecimal():
        raise AwsError(
            "InvalidPaginationTokenException", "The specified pagination token is invalid."
        )
    start = int(given or 0)
    result: Json = {key: items[start : start + size]}
    if start + size < len(items):
        result[next_name] = str(start + size)
    return result


# ------------------------------------------------------------------------------ event streams


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message of `application/vnd.amazon.eventstream`."""
    packed = b"".join(
        struct.pack("!B", len(name))
        + name.encode()
        + b"\x07"
        + struct.pack("!H", len(value))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    message = prelude + struct.pack("!I", binascii.crc32(prelude)) + packed + payload
    return message + struct.pack("!I", binascii.crc32(message))


def payload_part(payload: bytes) -> bytes:
    """A part of a container's streamed answer."""
    return frame(
        {
            ":event-type": "PayloadPart",
            ":content-type": "application/octet-stream",
            ":message-type": "event",
        },
        payload,
    )


def stream_failure(kind: str, message: str, fields: Mapping[str, str] | None = None) -> bytes:
    """An exception in the middle of a stream, under status 200."""
    return frame(
        {
            ":exception-type": kind,
            ":content-type": "application/json",
            ":message-type": "exception",
        },
        json.dumps({"Message": message, **(fields or {})}).encode(),
    )
