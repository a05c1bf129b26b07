"""Artifact Registry API: repositories, and the images that builds have put there."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.policies import policy_routes
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.world import World

_PACKAGE = "type.googleapis.com/google.devtools.artifactregistry.v1."


def push_image(world: World, image: str, size: int = 9_876_543_210) -> Json:
    """Put an image into its repository, as a build does; returns what a build says of it.

    Args:
        world: The project.
        image: `REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG`.
        size: Bytes.
    """
    digest = "sha256:" + hashlib.sha256(f"{image}{now()}".encode()).hexdigest()
    world.images[image] = {"digest": digest, "size": size, "time": now()}
    return {"name": image, "digest": digest}


def api(cloud: Cloud) -> Api:
    """The API."""
    routes = _Artifacts(cloud)
    made = Api("artifactregistry.googleapis.com", "Artifact Registry API")
    path = r"/v1/projects/([^/]+)/locations/([^/]+)/repositories"
    add = made.add
    add("POST", path, routes.create, "artifactregistry.repositories.create")
    add("GET", path, routes.listed, "artifactregistry.repositories.list")
    add("GET", path + r"/([^/:]+)", routes.get, "artifactregistry.repositories.get")
    add("DELETE", path + r"/([^/:]+)", routes.delete, "artifactregistry.repositories.delete")
    images = path + r"/([^/]+)/dockerImages"
    add("GET", images, routes.images, "artifactregistry.dockerimages.list")
    add("GET", images + r"/([^/]+)", routes.image, "artifactregistry.dockerimages.get")
    tags = path + r"/([^/]+)/packages/([^/]+)/tags"
    add("GET", path + r"/([^/]+)/packages", routes.packages, "artifactregistry.packages.list")
    add("GET", tags, routes.tags, "artifactregistry.tags.list")
    add("GET", tags + r"/([^/]+)", routes.tag, "artifactregistry.tags.get")
    add(
        "GET",
        r"/v1/(projects/[^/]+/locations/[^/]+/operations/[^/]+)",
        routes.operation,
    )
    get, put, test = policy_routes(cloud.world, routes.check)
    one = r"/v1/(projects/[^/]+/locations/[^/]+/repositories/[^/:]+)"
    add("GET", one + ":getIamPolicy", get, "artifactregistry.repositories.getIamPolicy")
    add("POST", one + ":setIamPolicy", put, "artifactregistry.repositories.setIamPolicy")
    add("POST", one + ":testIamPermissions", test)
    return made


class _Artifacts:
    def __init__(self, cloud: Cloud) -> None:
        self._world = cloud.world

    def check(self, resource: str) -> None:
        """Raise where a repository of that resource name does not exist."""
        parts = resource.split("/")
        self._find(parts[1], parts[3], parts[5])

    def create(self, request: Request, project: str, location: str) -> Json:
        """A repository."""
        self._world.check_project(project)
        name = request.value("repositoryId")
        key = f"projects/{self._world.project}/locations/{location}/repositories/{name}"
        if key in self._world.repositories:
            raise ApiError(409, "the repository already exists")
        body = request.json()
        self._world.repositories[key] = {
            "name": key,
            "format": body.get("format", "DOCKER"),
            "description": body.get("description", ""),
            "labels": body.get("labels") or {},
            "createTime": now(),
            "updateTime": now(),
            "mode": "STANDARD_REPOSITORY",
            "registryUri": f"{location}-docker.pkg.dev/{self._world.project}/{name}",
            "sizeBytes": "0",
        }
        return self._done(location, "Repository", self._world.repositories[key])

    def listed(self, request: Request, project: str, location: str) -> Json:
        """Repositories of a location; `-` for all."""
        self._world.check_project(project)
        found = [
            value
            for key, value in sorted(self._world.repositories.items())
            if location in {"-", key.split("/")[3]}
        ]
        return page(request, found, "repositories", default=1000)

    def get(self, request: Request, project: str, location: str, name: str) -> Json:
        """One repository."""
        del request
        return self._find(project, location, name)

    def delete(self, request: Request, project: str, location: str, name: str) -> Json:
        """Delete a repository with its images."""
        del request
        found = self._find(project, location, name)
        del self._world.repositories[found["name"]]
        for image in [image for image in self._world.images if self._is_in(image, found)]:
            del self._world.images[image]
        return self._done(location, "", {})

    def images(self, request: Request, project: str, location: str, name: str) -> Json:
        """Docker images, newest first."""
        found = self._find(project, location, name)
        shown = [
            self._image(found, image) for image in self._world.images if self._is_in(image, found)
        ]
        shown.sort(key=lambda item: str(item["uploadTime"]), reverse=True)
        return page(request, shown, "dockerImages")

    def image(self, request: Request, project: str, location: str, name: str, wanted: str) -> Json:
        """One Docker image, by name and digest."""
        listed = self.images(request, project, location, name).get("dockerImages", [])
        for item in listed:
            if item["name"].endswith(f"/dockerImages/{wanted}"):
                return dict(item)
        raise ApiError(404, "Requested entity was not found.")

    def packages(self, request: Request, project: str, location: str, name: str) -> Json:
        """Names of images."""
        found = self._find(project, location, name)
        names = sorted(
            {self._split(image)[0] for image in self._world.images if self._is_in(image, found)}
        )
        shown = [{"name": f"{found['name']}/packages/{item}"} for item in names]
        return page(request, shown, "packages")

    def tags(self, request: Request, project: str, location: str, name: str, package: str) -> Json:
        """Tags of an image."""
        found = self._find(project, location, name)
        shown = [
            self._tag(found, image)
            for image in self._world.images
            if self._is_in(image, found) and self._split(image)[0] == package
        ]
        return page(request, shown, "tags")

    def tag(
        self, request: Request, project: str, location: str, name: str, package: str, wanted: str
    ) -> Json:
        """One tag."""
        del request
        found = self._find(project, location, name)
        for image in self._world.images:
            if self._is_in(image, found) and self._split(image) == (package, wanted):
                return self._tag(found, image)
        raise ApiError(404, "Requested entity was not found.")

    def operation(self, request: Request, name: str) -> Json:
        """An operation, which is done."""
        del request
        found = self._world.operations.get(name)
        if found is None:
            raise ApiError(404, f"Operation {name} not found.")
        return found

    def _find(self, project: str, location: str, name: str) -> Json:
        self._world.check_project(project)
        key = f"projects/{self._world.project}/locations/{location}/repositories/{name}"
        found = self._world.repositories.get(key)
        if found is None:
            raise ApiError(404, "Requested entity was not found.")
        return found

    @staticmethod
    def _is_in(image: str, repository: Json) -> bool:
        return image.startswith(repository["registryUri"] + "/")

    @staticmethod
    def _split(image: str) -> tuple[str, str]:
        """Name and tag of an image within its repository."""
        name, _, tag = image.split("/", 3)[3].partition(":")
        return name, tag or "latest"

    def _image(self, repository: Json, image: str) -> Json:
        name, tag = self._split(image)
        held = self._world.images[image]
        return {
            "name": f"{repository['name']}/dockerImages/{name}@{held['digest']}",
            "uri": f"{repository['registryUri']}/{name}@{held['digest']}",
            "tags": [tag],
            "imageSizeBytes": str(held["size"]),
            "uploadTime": held["time"],
            "updateTime": held["time"],
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "buildTime": held["time"],
        }

    def _tag(self, repository: Json, image: str) -> Json:
        name, tag = self._split(image)
        package = f"{repository['name']}/packages/{name}"
        return {
            "name": f"{package}/tags/{tag}",
            "version": f"{package}/versions/{self._world.images[image]['digest']}",
        }

    def _done(self, location: str, kind: str, response: Json) -> Json:
        name = f"projects/{self._world.project}/locations/{location}/operations/{self._world.uid()}"
        operation: Json = {"name": name, "done": True, "response": response}
        if kind:
            operation["response"] = {"@type": _PACKAGE + kind, **response}
        else:
            operation["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}
        self._world.operations[name] = operation
        return operation
