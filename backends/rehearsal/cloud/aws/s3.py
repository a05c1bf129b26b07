"""S3: buckets of one region each, objects whole and in parts; what aws s3 and boto3 use of it."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator, Iterator
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service, iso
from backends.rehearsal.cloud.web import Json, Response

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account
    from backends.rehearsal.cloud.object_store import ObjectStore
    from backends.rehearsal.cloud.world import World

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_PAGE = 1000
_PART = "\x00part"


class S3:
    """Buckets and their objects.

    Args:
        account: Where buckets are kept.
        world: Where objects are described.
        objects: Their bytes; Google's buckets are in it too, under other names.
    """

    def __init__(self, account: Account, world: World, objects: ObjectStore) -> None:
        self._account = account
        self._world = world
        self._objects = objects

    def service(self) -> Service:
        """The service's handlers."""
        return Service("s3", "xml", "s3").on(
            ListBuckets=self._list_buckets,
            CreateBucket=self._create,
            HeadBucket=lambda call: Response(200, b"", self._headers(self._bucket(call))),
            DeleteBucket=self._delete_bucket,
            GetBucketLocation=self._location,
            ListObjects=self._list,
            ListObjectsV2=self._list,
            GetObject=self._get,
            HeadObject=self._get,
            PutObject=self._put,
            CopyObject=self._copy,
            DeleteObject=self._delete,
            DeleteObjects=self._delete_many,
            CreateMultipartUpload=self._begin,
            UploadPart=self._part,
            CompleteMultipartUpload=self._complete,
            AbortMultipartUpload=self._abort,
        )

    def may_read(self, region: str, uri: str) -> bool:
        """Whether a folder is there, in that region, for whoever has the right to read it."""
        bucket, _, folder = uri.removeprefix("s3://").partition("/")
        known = self._account.buckets.get(bucket)
        prefix = folder.rstrip("/") + "/"
        names = self._world.objects.get(_kept(bucket), {})
        here = known is not None and known["region"] == region
        return here and any(name.startswith(prefix) for name in names)

    # ------------------------------------------------------------------------- buckets

    def _list_buckets(self, call: Call) -> Response:
        del call
        items = "".join(
            f"<Bucket><Name>{name}</Name><CreationDate>{iso(found['created'])}</CreationDate>"
            "</Bucket>"
            for name, found in sorted(self._account.buckets.items())
        )
        return _xml("ListAllMyBucketsResult", f"<Buckets>{items}</Buckets>")

    def _create(self, call: Call) -> Response:
        name = call.text("Bucket")
        if name in self._account.buckets:
            raise AwsError(
                "BucketAlreadyOwnedByYou",
                "Your previous request to create the named bucket succeeded and you already own "
                "it.",
                409,
            )
        self._account.buckets[name] = {"region": call.region, "created": time.time()}
        self._account.changed()
        return Response(200, b"", {"location": f"/{name}"})

    def _delete_bucket(self, call: Call) -> Response:
        name = call.text("Bucket")
        self._bucket(call)
        if self._world.objects.get(_kept(name)):
            raise AwsError("BucketNotEmpty", "The bucket you tried to delete is not empty", 409)
        del self._account.buckets[name]
        self._account.changed()
        return Response(204, b"")

    def _location(self, call: Call) -> Response:
        # Where a bucket is can be asked anywhere.
        region = self._known(call)["region"]
        return _xml("LocationConstraint", "" if region == "us-east-1" else region)

    def _known(self, call: Call) -> Json:
        found = self._account.buckets.get(call.text("Bucket"))
        if found is None:
            raise AwsError("NoSuchBucket", "The specified bucket does not exist", 404)
        return found

    def _bucket(self, call: Call) -> Json:
        found = self._known(call)
        if found["region"] != call.region:
            raise AwsError(
                "PermanentRedirect",
                "The bucket you are attempting to access must be addressed using the specified "
                "endpoint. Please send all future requests to this endpoint.",
                301,
                {"x-amz-bucket-region": found["region"]},
            )
        return found

    @staticmethod
    def _headers(bucket: Json) -> dict[str, str]:
        return {"x-amz-bucket-region": str(bucket["region"])}

    # ------------------------------------------------------------------------- objects

    def _list(self, call: Call) -> Response:
        self._bucket(call)
        request, bucket = call.request, call.text("Bucket")
        prefix, delimiter = request.value("prefix"), request.value("delimiter")
        after = request.value("continuation-token") or request.value("marker")
        after = after or request.value("start-after")
        size = min(int(request.value("max-keys") or _PAGE), _PAGE)
        shown: dict[str, bool] = {}
        for name in sorted(self._world.objects.get(_kept(bucket), {})):
            rest = name.removeprefix(prefix)
            if not name.startswith(prefix) or name.startswith(_PART):
                continue
            folded = bool(delimiter) and delimiter in rest
            shown[prefix + rest.split(delimiter)[0] + delimiter if folded else name] = folded
        names = [name for name in shown if name > after]
        page, more = names[:size], len(names) > size
        body = f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{size}</MaxKeys>"
        body += f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        encoded = request.value("encoding-type") == "url"
        if encoded:
            body += "<EncodingType>url</EncodingType>"
        if more:
            last = escape(page[-1])
            body += f"<NextContinuationToken>{last}</NextContinuationToken>"
            body += f"<NextMarker>{last}</NextMarker>"
        for name in page:
            key = quote(name) if encoded else escape(name)
            if shown[name]:
                body += f"<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"
                continue
            meta = self._world.objects[_kept(bucket)][name]
            body += (
                f"<Contents><Key>{key}</Key><LastModified>{meta['updated']}</LastModified>"
                f"<ETag>{_etag(meta)}</ETag><Size>{meta['size']}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        return _xml("ListBucketResult", body)

    def _get(self, call: Call) -> Response:
        self._bucket(call)
        bucket, key = call.text("Bucket"), call.text("Key")
        meta = self._object(bucket, key)
        size = int(meta["size"])
        headers = {
            "etag": _etag(meta),
            "content-type": str(meta["contentType"]),
            "accept-ranges": "bytes",
            "last-modified": formatdate(meta["s3_at"], usegmt=True),
        }
        start, end, status = 0, size, 200
        if wanted := call.request.headers.get("range", ""):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(size - int(last), 0)
            end = min(int(last) + 1, size) if first and last else size
            if start >= size:
                raise AwsError("InvalidRange", "The requested range is not satisfiable", 416)
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
            status = 206
        headers["content-length"] = str(end - start)
        if call.operation == "HeadObject":
            return Response(status, b"", headers)
        stream = _stream(self._objects.read(_kept(bucket), key, start, end))
        return Response(status, headers=headers, stream=stream)

    def _put(self, call: Call) -> Response:
        self._bucket(call)
        meta = self._keep(call, call.text("Key"))
        return Response(200, b"", {"etag": _etag(meta)})

    def _keep(self, call: Call, key: str) -> Json:
        said = {"contentType": call.request.headers.get("content-type", "")}
        made = self._objects.put(_kept(call.text("Bucket")), key, _body(call), said)
        made["s3_at"] = time.time()
        return made

    def _copy(self, call: Call) -> Response:
        self._bucket(call)
        source = unquote(call.request.headers["x-amz-copy-source"]).lstrip("/").partition("?")[0]
        bucket, _, key = source.partition("/")
        self._object(bucket, key)
        meta = self._objects.copy(
            (_kept(bucket), key), (_kept(call.text("Bucket")), call.text("Key")), {}
        )
        meta["s3_at"] = time.time()
        return _xml(
            "CopyObjectResult",
            f"<ETag>{_etag(meta)}</ETag><LastModified>{meta['updated']}</LastModified>",
        )

    def _delete(self, call: Call) -> Response:
        self._bucket(call)
        self._objects.delete(_kept(call.text("Bucket")), call.text("Key"))
        return Response(204, b"")

    def _delete_many(self, call: Call) -> Response:
        self._bucket(call)
        keys = [item.text or "" for item in _tree(_body(call)).iter() if item.tag.endswith("Key")]
        for key in keys:
            self._objects.delete(_kept(call.text("Bucket")), key)
        gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _xml("DeleteResult", gone)

    # ------------------------------------------------------------------------- in parts

    def _begin(self, call: Call) -> Response:
        self._bucket(call)
        body = f"<Bucket>{call.text('Bucket')}</Bucket><Key>{escape(call.text('Key'))}</Key>"
        upload = f"upload{self._world.next()}"
        return _xml("InitiateMultipartUploadResult", f"{body}<UploadId>{upload}</UploadId>")

    def _part(self, call: Call) -> Response:
        self._bucket(call)
        meta = self._keep(call, self._part_name(call, int(call.request.value("partNumber"))))
        return Response(200, b"", {"etag": _etag(meta)})

    def _complete(self, call: Call) -> Response:
        self._bucket(call)
        bucket, key = call.text("Bucket"), call.text("Key")
        tree = _tree(_body(call)).iter()
        numbers = [int(item.text or 0) for item in tree if item.tag.endswith("PartNumber")]
        parts = [self._part_name(call, number) for number in numbers]
        for part in parts:
            self._object(bucket, part)
        meta = self._objects.compose(_kept(bucket), parts, key, {})
        meta["s3_at"] = time.time()
        for part in parts:
            self._objects.delete(_kept(bucket), part)
        body = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><ETag>{_etag(meta)}</ETag>"
        return _xml("CompleteMultipartUploadResult", body)

    def _abort(self, call: Call) -> Response:
        self._bucket(call)
        bucket = _kept(call.text("Bucket"))
        begin = self._part_name(call, 0)[:-5]
        for name in [n for n in self._world.objects.get(bucket, {}) if n.startswith(begin)]:
            self._objects.delete(bucket, name)
        return Response(204, b"")

    @staticmethod
    def _part_name(call: Call, number: int) -> str:
        return f"{_PART}/{call.request.value('uploadId')}/{number:05}"

    def _object(self, bucket: str, key: str) -> Json:
        found: Json | None = self._world.objects.get(_kept(bucket), {}).get(key)
        if found is None:
            raise AwsError("NoSuchKey", "The specified key does not exist.", 404)
        return found


def _kept(bucket: str) -> str:
    """What a bucket is called beside Google's, which may have the same name."""
    return f"s3:{bucket}"


def _etag(meta: Json) -> str:
    digest = base64.b64decode(str(meta.get("md5Hash") or meta["crc32c"])).hex()
    return f'"{digest}-{meta["componentCount"]}"' if "componentCount" in meta else f'"{digest}"'


def _body(call: Call) -> bytes:
    """The body without the chunks that signing and checksums put around it."""
    raw = call.request.raw()
    if "aws-chunked" not in call.request.headers.get("content-encoding", ""):
        return raw
    parts: list[bytes] = []
    while raw:
        head, _, raw = raw.partition(b"\r\n")
        size = int(head.partition(b";")[0] or b"0", 16)
        if size == 0:
            break
        parts.append(raw[:size])
        raw = raw[size + 2 :]
    return b"".join(parts)


def _tree(body: bytes) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(body)  # noqa: S314 (of a client on this machine)
    except ElementTree.ParseError:
        raise AwsError("MalformedXML", "The XML you provided was not well-formed") from None


def _xml(name: str, body: str) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{_NAMESPACE}">{body}</{name}>'
    return Response(200, text.encode(), {"content-type": "application/xml"})


async def _stream(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
