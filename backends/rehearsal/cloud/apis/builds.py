"""Cloud Build API: builds go through their states; what they were to make is there afterwards.

A build is not run. What it makes is read from its steps: an image named in `images` or in a
`docker build`, and a model that a step downloads from Hugging Face and copies to a bucket.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from backends.core.errors import NotFoundError
from backends.knowledge.checkpoints import CHECKPOINTS, find_checkpoint
from backends.rehearsal.cloud.apis.artifacts import push_image
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.object_store import ObjectStore

_TYPE = "type.googleapis.com/google.devtools.cloudbuild.v1."

# Seconds of a build at Google: waiting for a machine, then working.
_QUEUE_S = 12.0
_WORK_S = 240.0

_BUCKET_PATH = re.compile(r"gs://([a-z0-9._-]+)/?([\w./-]*)")


def api(cloud: Cloud, objects: ObjectStore) -> Api:
    """The API."""
    routes = _Builds(cloud, objects)
    cloud.faults.register("build", routes.break_next)
    cloud.renew.append(routes.renew)
    made = Api("cloudbuild.googleapis.com", "Cloud Build API")
    add = made.add
    for prefix in (r"/v1/projects/([^/]+)", r"/v1/projects/([^/]+)/locations/[^/]+"):
        builds = prefix + "/builds"
        add("POST", builds, routes.create, "cloudbuild.builds.create")
        add("GET", builds, routes.listed, "cloudbuild.builds.list")
        add("GET", builds + r"/([^/:]+)", routes.get, "cloudbuild.builds.get")
        add("POST", builds + r"/([^/:]+):cancel", routes.cancel, "cloudbuild.builds.update")
    add("GET", r"/v1/(operations/.+)", routes.operation, "cloudbuild.builds.get")
    add("GET", r"/v1/(projects/[^/]+/locations/[^/]+/operations/.+)", routes.operation)
    add(
        "GET",
        r"/v1/projects/([^/]+)/locations/([^/]+)/defaultServiceAccount",
        routes.default_account,
    )
    return made


class _Builds:
    def __init__(self, cloud: Cloud, objects: ObjectStore) -> None:
        self._cloud = cloud
        self._world = cloud.world
        self._objects = objects
        self._broken: list[Json] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # What was under way when the cloud ended goes on.
        for build_id, build in self._world.builds.items():
            if build["status"] in {"QUEUED", "WORKING"}:
                self._start(build_id)

    def break_next(self, values: Json) -> Any:  # noqa: ANN401 (an undo)
        """Let the next builds fail with these log lines; -1 times for all."""
        trouble: Json = {"lines": [str(line) for line in values["lines"]]}
        trouble["times"] = int(values.get("times", 1))
        self._broken.append(trouble)

        def undo() -> None:
            if trouble in self._broken:
                self._broken.remove(trouble)

        return undo

    def renew(self, _empty: bool) -> None:
        """Stop what builds."""
        for task in self._tasks.values():
            task.cancel()

    def create(self, request: Request, project: str) -> Json:
        """Queue a build."""
        self._world.check_project(project)
        build = request.json()
        build_id = self._world.uid()
        bucket = str(build.get("logsBucket", "")).removeprefix("gs://").strip("/")
        if not bucket and (build.get("options") or {}).get("logging") != "CLOUD_LOGGING_ONLY":
            bucket = f"{self._world.number}.cloudbuild-logs.googleusercontent.com"
        made = build | {
            "id": build_id,
            "name": f"projects/{self._world.number}/locations/global/builds/{build_id}",
            "projectId": self._world.project,
            "status": "QUEUED",
            "createTime": now(),
            "logUrl": "https://console.cloud.google.com/cloud-build/builds/"
            f"{build_id}?project={self._world.number}",
            "queueTtl": "3600s",
            "timeout": build.get("timeout", "600s"),
        }
        if bucket:
            made["logsBucket"] = f"gs://{bucket}"
        self._world.builds[build_id] = made
        self._start(build_id)
        return self._operation(made)

    def listed(self, request: Request, project: str) -> Json:
        """Builds, newest first."""
        self._world.check_project(project)
        wanted = re.search(r'status="?(\w+)', request.value("filter"))
        found = [
            build
            for build in self._world.builds.values()
            if wanted is None or build["status"] == wanted.group(1)
        ]
        found.sort(key=lambda build: str(build["createTime"]), reverse=True)
        return page(request, found, "builds")

    def get(self, request: Request, project: str, build: str) -> Json:
        """One build."""
        del request
        self._world.check_project(project)
        return self._find(build)

    def cancel(self, request: Request, project: str, build: str) -> Json:
        """Stop a build."""
        del request
        self._world.check_project(project)
        found = self._find(build)
        task = self._tasks.pop(build, None)
        if task is not None:
            task.cancel()
            found |= {"status": "CANCELLED", "finishTime": now()}
            self._log(found, ["CANCELLED", "ERROR: context canceled"])
        return found

    def operation(self, request: Request, name: str) -> Json:
        """A build's operation."""
        del request
        encoded = name.rpartition("/")[2]
        for build in self._world.builds.values():
            if build["id"] == encoded:
                return self._operation(build)
        raise ApiError(404, f"Operation {name} not found.")

    def default_account(self, request: Request, project: str, location: str) -> Json:
        """The service account that builds run as."""
        del request, location
        self._world.check_project(project)
        return {
            "name": f"projects/{self._world.project}/locations/global/defaultServiceAccount",
            "serviceAccountEmail": f"projects/{self._world.project}/serviceAccounts/"
            f"{self._world.default_account}",
        }

    # ------------------------------------------------------------------------- inside

    def _find(self, build: str) -> Json:
        found = self._world.builds.get(build)
        if found is None:
            raise ApiError(404, "Requested entity was not found.")
        return found

    def _operation(self, build: Json) -> Json:
        done = build["status"] not in {"QUEUED", "WORKING"}
        operation: Json = {
            "name": f"operations/build/{self._world.project}/{build['id']}",
            "metadata": {"@type": _TYPE + "BuildOperationMetadata", "build": build},
        }
        if done:
            operation["done"] = True
            if build["status"] == "SUCCESS":
                operation["response"] = {"@type": _TYPE + "Build", **build}
            else:
                operation["error"] = {
                    "code": 9,
                    "message": f"Build failed; check build logs for details: {build['status']}",
                }
        return operation

    def _start(self, build_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self._run(build_id))
        self._tasks[build_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(build_id, None))

    async def _run(self, build_id: str) -> None:
        build = self._world.builds[build_id]
        await asyncio.sleep(self._cloud.after(_QUEUE_S))
        build |= {"status": "WORKING", "startTime": now()}
        steps = build.get("steps") or []
        self._log(build, [f'starting build "{build_id}"', "", "FETCHSOURCE", "BUILD"])
        trouble = next((item for item in self._broken if item["times"]), None)
        for index, step in enumerate(steps):
            self._log(
                build,
                [
                    f"Starting Step #{index}",
                    f"Step #{index}: Pulling image: {step.get('name', '')}",
                ],
            )
            await asyncio.sleep(self._cloud.after(_WORK_S / max(len(steps), 1)))
            if trouble is not None:
                trouble["times"] -= trouble["times"] > 0
                self._log(build, [f"Step #{index}: {line}" for line in trouble["lines"]])
                self._finish(build, index)
                return
            self._log(build, [f"Finished Step #{index}"])
        results = self._make(build)
        build |= {"status": "SUCCESS", "finishTime": now(), "results": results}
        self._log(build, ["PUSH", "DONE"])
        self._world.dirty = True

    def _finish(self, build: Json, index: int) -> None:
        name = (build.get("steps") or [{}])[index].get("name", "")
        detail = f'build step {index} "{name}" failed: step exited with non-zero status: 1'
        build |= {
            "status": "FAILURE",
            "finishTime": now(),
            "failureInfo": {"type": "USER_BUILD_STEP", "detail": detail},
        }
        self._log(build, ["ERROR", f"ERROR: {detail}"])
        self._world.dirty = True

    def _make(self, build: Json) -> Json:
        """What the build was to make."""
        text = _text_of(build)
        images = [_filled(str(image), build) for image in build.get("images") or []]
        for step in build.get("steps") or []:
            args = [_filled(str(arg), build) for arg in step.get("args") or []]
            if "docker" in str(step.get("name", "")) and "build" in args:
                images += [args[i + 1] for i, arg in enumerate(args[:-1]) if arg in {"-t", "--tag"}]
        pushed = [push_image(self._world, image) for image in dict.fromkeys(images)]
        for name in CHECKPOINTS:
            checkpoint = find_checkpoint(name)
            if re.search(rf"{re.escape(checkpoint.repo_id)}(?![\w.-])", text):
                self._stage(text, checkpoint.name)
                break
        return {"images": pushed} if pushed else {}

    def _stage(self, text: str, name: str) -> None:
        """Put the model a step was to copy into the bucket it was to copy it to."""
        for bucket, path in _BUCKET_PATH.findall(text):
            if bucket in self._world.buckets and path.strip("/"):
                try:
                    checkpoint = find_checkpoint(name)
                except NotFoundError:
                    return
                folder = path.strip("/").removesuffix("/config.json")
                self._objects.put_model(bucket, folder, checkpoint, "gemma4")
                return

    def _log(self, build: Json, lines: list[str]) -> None:
        resource = {
            "type": "build",
            "labels": {
                "project_id": self._world.project,
                "build_id": build["id"],
                "build_trigger_id": "",
            },
        }
        for line in filter(None, lines):
            self._cloud.logs.write(
                "cloudbuild", resource, line, severity="INFO", labels={"build_step": "MAIN"}
            )
        bucket = str(build.get("logsBucket", "")).removeprefix("gs://")
        if not bucket:
            return
        if bucket not in self._world.buckets:
            self._world.buckets[bucket] = {
                "kind": "storage#bucket",
                "id": bucket,
                "name": bucket,
                "location": "US",
                "locationType": "multi-region",
                "storageClass": "STANDARD",
                "metageneration": "1",
                "etag": "CAE=",
                "timeCreated": now(),
                "updated": now(),
            }
            self._world.objects.setdefault(bucket, {})
        name = f"log-{build['id']}.txt"
        known = self._world.objects[bucket].get(name)
        before = b"".join(self._objects.read(bucket, name, 0, int(known["size"]))) if known else b""
        data = before + "".join(f"{line}\n" for line in lines).encode()
        self._objects.put(bucket, name, data, {"contentType": "text/plain"})


def _text_of(build: Json) -> str:
    """Everything a build's steps say, with substitutions filled in."""
    parts: list[str] = []
    for step in build.get("steps") or []:
        parts += [str(part) for part in step.get("args") or []]
        parts += [str(part) for part in step.get("env") or []]
        parts.append(str(step.get("script", "")))
    parts += [str(value) for value in (build.get("substitutions") or {}).values()]
    parts += [str(part) for part in (build.get("options") or {}).get("env") or []]
    return _filled("\n".join(parts), build)


def _filled(text: str, build: Json) -> str:
    names = (build.get("substitutions") or {}) | {
        "PROJECT_ID": build.get("projectId", ""),
        "BUILD_ID": build.get("id", ""),
    }
    for name, value in names.items():
        text = text.replace(f"${{{name}}}", str(value)).replace(f"${name}", str(value))
    return text
