"""Cloud Storage JSON API: buckets, objects, uploads in all three ways, ranged downloads, IAM."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.apis.uploads import Uploads
from backends.rehearsal.cloud.policies import get_policy, set_policy, test_permissions
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, Response, page
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.object_store import ObjectStore

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_BUCKETS = "/storage/v1/b"
_ONE = _BUCKETS + r"/([^/]+)"
_OBJECT = _ONE + r"/o/(.+)"


def api(cloud: Cloud, objects: ObjectStore) -> Api:
    """The API."""
    routes = Storage(cloud, objects)
    made = Api(
        "storage.googleapis.com",
        "Cloud Storage API",
        hosts=r"(?:storage|www)\.googleapis\.com",
        always_on=True,
        errors="legacy",
    )
    add = made.add
    add("POST", _BUCKETS, routes.create_bucket, "storage.buckets.create")
    add("GET", _BUCKETS, routes.list_buckets, "storage.buckets.list")
    add("GET", _ONE, routes.get_bucket, "storage.buckets.get")
    add("PATCH", _ONE, routes.patch_bucket, "storage.buckets.update")
    add("DELETE", _ONE, routes.delete_bucket, "storage.buckets.delete")
    add("GET", _ONE + "/storageLayout", routes.layout, "storage.buckets.get")
    add("GET", _ONE + "/iam", routes.get_iam, "storage.buckets.getIamPolicy")
    add("PUT", _ONE + "/iam", routes.set_iam, "storage.buckets.setIamPolicy")
    add("GET", _ONE + "/iam/testPermissions", routes.test_iam)
    add("GET", _ONE + "/o", routes.list_objects, "storage.objects.list")
    add("POST", _OBJECT + r"/rewriteTo/b/([^/]+)/o/(.+)", routes.rewrite, "storage.objects.create")
    add("POST", _OBJECT + r"/copyTo/b/([^/]+)/o/(.+)", routes.copy, "storage.objects.create")
    add("POST", _OBJECT + "/compose", routes.compose, "storage.objects.create")
    add("GET", _OBJECT, routes.get_object, "storage.objects.get")
    add("GET", "/download" + _OBJECT, routes.get_object, "storage.objects.get")
    add("PATCH", _OBJECT, routes.patch_object, "storage.objects.update")
    add("DELETE", _OBJECT, routes.delete_object, "storage.objects.delete")
    upload = r"/(?:resumable/)?upload" + _ONE + "/o"
    uploads = Uploads(objects, routes)
    add("POST", upload, uploads.upload, "storage.objects.create")
    add("PUT", upload, uploads.piece, "storage.objects.create")
    add("DELETE", upload, uploads.cancel)
    add(
        "GET",
        r"/storage/v1/projects/([^/]+)/serviceAccount",
        routes.service_account,
        "resourcemanager.projects.get",
    )
    return made


class Storage:
    """Buckets and objects.

    Args:
        cloud: The parts of the cloud.
        objects: What the buckets hold.
    """

    def __init__(self, cloud: Cloud, objects: ObjectStore) -> None:
        self._world = cloud.world
        self._objects = objects

    # ------------------------------------------------------------------------- buckets

    def create_bucket(self, request: Request) -> Json:
        """A bucket."""
        project = request.value("project")
        if project:
            self._world.check_project(project)
        body = request.json()
        name = str(body.get("name", ""))
        if not _NAME.fullmatch(name):
            raise ApiError(400, f"Invalid bucket name: '{name}'", reason="invalid")
        if name in self._world.buckets:
            raise ApiError(
                409,
                "Your previous request to create the named bucket succeeded and you already own "
                "it.",
                reason="conflict",
            )
        location = str(body.get("location") or "US").upper()
        bucket: Json = body | {
            "kind": "storage#bucket",
            "id": name,
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{name}",
            "projectNumber": self._world.number,
            "metageneration": "1",
            "generation": str(self._world.next()),
            "location": location,
            "locationType": "region" if "-" in location else "multi-region",
            "storageClass": body.get("storageClass", "STANDARD"),
            "etag": "CAE=",
            "timeCreated": now(),
            "updated": now(),
            "iamConfiguration": body.get("iamConfiguration")
            or {
                "uniformBucketLevelAccess": {"enabled": True},
                "publicAccessPrevention": "inherited",
            },
        }
        self._world.buckets[name] = bucket
        self._world.objects.setdefault(name, {})
        self._world.policies[f"b/{name}"] = {
            "kind": "storage#policy",
            "resourceId": f"projects/_/buckets/{name}",
            "version": 1,
            "etag": self._world.etag(),
            "bindings": [
                {
                    "role": "roles/storage.legacyBucketOwner",
                    "members": [
                        f"projectEditor:{self._world.project}",
                        f"projectOwner:{self._world.project}",
                    ],
                },
                {
                    "role": "roles/storage.legacyBucketReader",
                    "members": [f"projectViewer:{self._world.project}"],
                },
            ],
        }
        return bucket

    def list_buckets(self, request: Request) -> Json:
        """Buckets of the project."""
        self._world.check_project(request.value("project", self._world.project))
        prefix = request.value("prefix")
        found = [
            bucket
            for name, bucket in sorted(self._world.buckets.items())
            # Google's own bucket for build logs is not the project's.
            if name.startswith(prefix) and not name.endswith(".googleusercontent.com")
        ]
        return {"kind": "storage#buckets"} | page(request, found, "items", default=1000)

    def get_bucket(self, request: Request, bucket: str) -> Json:
        """One bucket."""
        del request
        return self.bucket(bucket)

    def patch_bucket(self, request: Request, bucket: str) -> Json:
        """Change labels, lifecycle and the like."""
        found = self.bucket(bucket)
        for name, value in request.json().items():
            if value is None:
                found.pop(name, None)
            elif isinstance(value, dict) and isinstance(found.get(name), dict):
                merged = found[name] | value
                found[name] = {key: item for key, item in merged.items() if item is not None}
            else:
                found[name] = value
        found["metageneration"] = str(int(found["metageneration"]) + 1)
        found["updated"] = now()
        return found

    def delete_bucket(self, request: Request, bucket: str) -> Response:
        """Delete an empty bucket."""
        del request
        self.bucket(bucket)
        if self._world.objects.get(bucket):
            raise ApiError(409, "The bucket you tried to delete is not empty.", reason="conflict")
        del self._world.buckets[bucket]
        self._world.policies.pop(f"b/{bucket}", None)
        self._objects.drop_bucket(bucket)
        return Response(204)

    def layout(self, request: Request, bucket: str) -> Json:
        """Where a bucket is, and that it has no folders of its own."""
        del request
        found = self.bucket(bucket)
        return {
            "kind": "storage#storageLayout",
            "bucket": bucket,
            "location": found["location"],
            "locationType": found["locationType"],
            "hierarchicalNamespace": {"enabled": False},
        }

    def get_iam(self, request: Request, bucket: str) -> Json:
        """A bucket's policy."""
        del request
        self.bucket(bucket)
        return get_policy(self._world, f"b/{bucket}")

    def set_iam(self, request: Request, bucket: str) -> Json:
        """Set a bucket's policy."""
        self.bucket(bucket)
        made = set_policy(self._world, f"b/{bucket}", request.json())
        made |= {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket}"}
        return made

    def test_iam(self, request: Request, bucket: str) -> Json:
        """Which permissions the caller holds."""
        self.bucket(bucket)
        return {"kind": "storage#testIamPermissionsResponse"} | test_permissions(
            self._world, request
        )

    def service_account(self, request: Request, project: str) -> Json:
        """The service agent of Cloud Storage."""
        del request
        self._world.check_project(project)
        return {
            "kind": "storage#serviceAccount",
            "email_address": f"service-{self._world.number}@gs-project-accounts.iam."
            "gserviceaccount.com",
        }

    # ------------------------------------------------------------------------- objects

    def list_objects(self, request: Request, bucket: str) -> Json:
        """Objects by prefix, folded at a delimiter."""
        self.bucket(bucket)
        prefix, delimiter = request.value("prefix"), request.value("delimiter")
        glob = request.value("matchGlob")
        names: list[tuple[str, bool]] = []
        folders: set[str] = set()
        for name in sorted(self._world.objects.get(bucket, {})):
            if not name.startswith(prefix) or (glob and not _matches(glob, name)):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest.split(delimiter)[0] + delimiter
                if folder not in folders:
                    folders.add(folder)
                    names.append((folder, True))
            else:
                names.append((name, False))
        size = int(request.value("maxResults") or 1000)
        token = request.value("pageToken")
        start = int(token) if token.isdecimal() else 0
        shown = names[start : start + size]
        answer: Json = {"kind": "storage#objects"}
        if items := [self._world.objects[bucket][name] for name, folder in shown if not folder]:
            answer["items"] = items
        if prefixes := [name for name, folder in shown if folder]:
            answer["prefixes"] = prefixes
        if start + size < len(names):
            answer["nextPageToken"] = str(start + size)
        return answer

    def get_object(self, request: Request, bucket: str, name: str) -> Response:
        """An object's metadata, or its bytes (all, or a range)."""
        meta = self._object(bucket, name)
        wanted = request.value("generation")
        if wanted and wanted != meta["generation"]:
            raise self._no_object(bucket, name)
        if request.value("alt") != "media":
            return Response(body=meta)
        size = int(meta["size"])
        hashes = [f"crc32c={meta['crc32c']}"]
        if "md5Hash" in meta:
            hashes.append(f"md5={meta['md5Hash']}")
        headers = {
            "content-type": str(meta["contentType"]),
            "x-goog-hash": ",".join(hashes),
            "x-goog-generation": str(meta["generation"]),
            "x-goog-metageneration": "1",
            "x-goog-stored-content-length": str(size),
            "x-goog-stored-content-encoding": "identity",
            "accept-ranges": "bytes",
            "etag": str(meta["etag"]),
        }
        start, end, status = 0, size, 200
        match = re.match(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if match and (match.group(1) or match.group(2)):
            if not match.group(1):
                start = max(size - int(match.group(2)), 0)
            else:
                start = int(match.group(1))
                end = min(int(match.group(2)) + 1, size) if match.group(2) else size
            if start >= size:
                return Response(416, b"", headers | {"content-range": f"bytes */{size}"})
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
            status = 206
        headers["content-length"] = str(end - start)
        stream = _stream(self._objects.read(bucket, name, start, end))
        return Response(status, headers=headers, stream=stream)

    def patch_object(self, request: Request, bucket: str, name: str) -> Json:
        """Change an object's metadata."""
        meta = self._object(bucket, name)
        for key in ("metadata", "contentType", "cacheControl"):
            if key in request.json():
                meta[key] = request.json()[key]
        meta["updated"] = now()
        return meta

    def delete_object(self, request: Request, bucket: str, name: str) -> Response:
        """Delete an object."""
        self.check_generation(request, bucket, name)
        if not self._objects.delete(bucket, name):
            raise self._no_object(bucket, name)
        return Response(204)

    def rewrite(
        self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str
    ) -> Json:
        """Copy an object, in one step."""
        made = self.copy(request, bucket, name, to_bucket, to_name)
        return {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": made["size"],
            "objectSize": made["size"],
            "done": True,
            "resource": made,
        }

    def copy(self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str) -> Json:
        """Copy an object."""
        self._object(bucket, name)
        self.bucket(to_bucket)
        return self._objects.copy((bucket, name), (to_bucket, to_name), request.json())

    def compose(self, request: Request, bucket: str, name: str) -> Json:
        """Join objects into one."""
        body = request.json()
        sources = [str(item["name"]) for item in body.get("sourceObjects", [])]
        for source in sources:
            self._object(bucket, source)
        return self._objects.compose(bucket, sources, name, body.get("destination") or {})

    # ------------------------------------------------------------------------- inside

    def bucket(self, bucket: str) -> Json:
        """A bucket; 404 where there is none."""
        found = self._world.buckets.get(bucket)
        if found is None:
            raise ApiError(404, "The specified bucket does not exist.", reason="notFound")
        return found

    def _object(self, bucket: str, name: str) -> Json:
        self.bucket(bucket)
        found = self._world.objects[bucket].get(name)
        if found is None:
            raise self._no_object(bucket, name)
        return found

    @staticmethod
    def _no_object(bucket: str, name: str) -> ApiError:
        return ApiError(404, f"No such object: {bucket}/{name}", reason="notFound")

    def check_generation(self, request: Request, bucket: str, name: str) -> None:
        """Hold `ifGenerationMatch`: 0 means that the object must not exist."""
        wanted = request.value("ifGenerationMatch")
        if not wanted:
            return
        found = self._world.objects.get(bucket, {}).get(name)
        if wanted != (found["generation"] if found else "0"):
            raise ApiError(
                412,
                "At least one of the pre-conditions you specified did not hold.",
                reason="conditionNotMet",
            )


async def _stream(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _matches(glob: str, name: str) -> bool:
    """Cloud Storage's globs: `*` stays within a folder, `**` does not."""
    pattern = re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    return re.fullmatch(pattern, name) is not None
