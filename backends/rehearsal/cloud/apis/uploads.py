"""Uploads to Cloud Storage: whole, in parts of one body, and in pieces that can be resumed."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
from typing import IO, TYPE_CHECKING, Any

from backends.rehearsal.cloud.web import ApiError, Json, Request, Response

if TYPE_CHECKING:
    from backends.rehearsal.cloud.apis.storage import Storage
    from backends.rehearsal.cloud.object_store import ObjectStore


class _Upload:
    """A resumable upload under way."""

    def __init__(self, bucket: str, name: str, meta: Json) -> None:
        self.bucket = bucket
        self.name = name
        self.meta = meta
        self.size = 0
        # Lives until the upload is finished or cancelled.
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115


class Uploads:
    """The three ways to upload.

    Args:
        objects: Where objects go.
        storage: Buckets and pre-conditions.
    """

    def __init__(self, objects: ObjectStore, storage: Storage) -> None:
        self._objects = objects
        self._storage = storage
        self._uploads: dict[str, _Upload] = {}

    def upload(self, request: Request, bucket: str) -> Response:
        """Begin or do an upload."""
        self._storage.bucket(bucket)
        kind = request.value("uploadType", "media")
        if kind == "resumable":
            return self._begin(request, bucket)
        if kind == "multipart":
            meta, start, end = _multipart(request)
            name = str(meta.get("name") or request.value("name"))
            self._storage.check_generation(request, bucket, name)
            request.body.seek(start)
            data = _Window(request.body, end - start)
            return Response(body=self._objects.put(bucket, name, data, meta))
        name = request.value("name")
        self._storage.check_generation(request, bucket, name)
        request.body.seek(0)
        meta = {"contentType": request.headers.get("content-type", "")}
        return Response(body=self._objects.put(bucket, name, request.body, meta))

    def piece(self, request: Request, bucket: str) -> Response:
        """Take a piece of a resumable upload; the last one stores the object."""
        upload = self._uploads.get(request.value("upload_id"))
        if upload is None or upload.bucket != bucket:
            raise ApiError(404, "Upload not found.")
        said = re.fullmatch(
            r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", request.headers.get("content-range", "")
        )
        total = None
        if said:
            total = None if said.group(3) == "*" else int(said.group(3))
            if said.group(1) is not None and int(said.group(1)) != upload.size:
                # What was cut off is asked for again.
                return self._more(upload)
        if request.size:
            request.body.seek(0)
            upload.file.seek(upload.size)
            while piece := request.body.read(1 << 20):
                upload.file.write(piece)
                upload.size += len(piece)
        if said and (total is None or upload.size < total):
            return self._more(upload)
        upload.file.seek(0)
        made = self._objects.put(bucket, upload.name, upload.file, upload.meta)
        self._end(request.value("upload_id"))
        return Response(body=made)

    def cancel(self, request: Request, bucket: str) -> Response:
        """Give a resumable upload up."""
        del bucket
        self._end(request.value("upload_id"))
        return Response(499, b"")

    def _begin(self, request: Request, bucket: str) -> Response:
        meta = request.json()
        name = str(meta.get("name") or request.value("name"))
        self._storage.check_generation(request, bucket, name)
        if not meta.get("contentType"):
            meta["contentType"] = request.headers.get("x-upload-content-type", "")
        upload_id = f"upload-{secrets.token_hex(8)}"
        self._uploads[upload_id] = _Upload(bucket, name, meta)
        location = (
            f"{request.origin}/upload/storage/v1/b/{bucket}/o?uploadType=resumable"
            f"&upload_id={upload_id}"
        )
        return Response(200, b"", {"location": location, "x-guploader-uploadid": upload_id})

    @staticmethod
    def _more(upload: _Upload) -> Response:
        headers = {"range": f"bytes=0-{upload.size - 1}"} if upload.size else {}
        return Response(308, b"", headers)

    def _end(self, upload_id: str) -> None:
        upload = self._uploads.pop(upload_id, None)
        if upload is not None:
            upload.file.close()


class _Window:
    """The next bytes of a file, as a file that ends there."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int) -> bytes:
        """At most `size` bytes more."""
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data


def _multipart(request: Request) -> tuple[Json, int, int]:
    """Metadata of a multipart upload, and where its content begins and ends in the body.

    Parts are parted by CRLF or, from gcloud, by bare LF.
    """
    match = re.search(r"""boundary=['"]?([^'";]+)""", request.headers["content-type"])
    if match is None:
        raise ApiError(400, "Missing multipart boundary.", reason="badRequest")
    marker = b"--" + match.group(1).encode()
    request.body.seek(0)
    head = request.body.read(min(request.size, 1 << 18))
    first = re.match(rb"\s*" + re.escape(marker) + rb"\r?\n.*?\r?\n\r?\n", head, re.DOTALL)
    second = None
    if first:
        second = re.compile(
            rb"\r?\n" + re.escape(marker) + rb"\r?\n.*?\r?\n\r?\n", re.DOTALL
        ).search(head, first.end())
    if first is None or second is None:
        raise ApiError(400, "Malformed multipart body.", reason="badRequest")
    meta: Any = json.loads(head[first.end() : second.start()])
    tail_size = min(request.size, len(marker) + 16)
    request.body.seek(request.size - tail_size)
    tail = request.body.read(tail_size)
    last = tail.rfind(marker)
    if last < 0:
        raise ApiError(400, "Malformed multipart body.", reason="badRequest")
    # One line end before the last marker belongs to it.
    before = tail[:last]
    trim = 2 if before.endswith(b"\r\n") else 1
    return dict(meta), second.end(), request.size - tail_size + last - trim
