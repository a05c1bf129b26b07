"""Inference components: copies of a model on machines of an endpoint that has none of its own.

Statuses are those of the API (botocore 1.44.8); refusals whose words were reported are in those
words, the others' are this rehearsal's own and marked so. Sources: AWS's guide "Scale an endpoint
to zero instances", Hugging Face's SageMaker skill for agents (measured July 2026), a public report
on stdapi.ai (issue 43, measured 2026-08-27), litellm's handling of the missing header.
"""

from __future__ import annotations

import asyncio
import copy
import re
import time
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.changes import Changes, Key
from backends.rehearsal.cloud.aws.copies import Copies, Copy
from backends.rehearsal.cloud.aws.endpoint_configs import hosts_components
from backends.rehearsal.cloud.aws.hosting import Hosting, HostingError
from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service, page
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account
    from backends.rehearsal.cloud.aws.endpoints import Endpoints
    from backends.rehearsal.cloud.aws.metrics import Metrics
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.run.instance import Instance

_NAME = re.compile(r"[a-zA-Z0-9]([\-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?")
_DELETING_S = 30.0
_SETTLE_S = 5.0
_PAGE, _DEFAULT_PAGE = 100, 10
# How SageMaker names, in its refusals, what a component's status is short for.
_DOING = {
    "Creating": "CREATE_IN_PROGRESS",
    "Updating": "UPDATE_RC_IN_PROGRESS",
    "Deleting": "DELETE_IN_PROGRESS",
}

NO_CAPACITY = (
    "Inference Component has no capacity to process this request. ApplicationAutoScaling may be "
    "in-progress (if configured) or try to increase the capacity by invoking "
    "UpdateInferenceComponentRuntimeConfig API."
)
NAME_NEEDED = (
    "Inference Component Name header is required for endpoints to which you plan to deploy "
    "inference components. Please include Inference Component Name header or consider using "
    "SageMaker models."
)


class Components:
    """Inference components, and the tasks in which they change.

    Args:
        account: Where they are kept.
        cloud: Speed.
        hosting: Their containers.
        endpoints: Their endpoints, with machines.
        metrics: Where their figures go.
    """

    def __init__(
        self,
        account: Account,
        cloud: Cloud,
        hosting: Hosting,
        endpoints: Endpoints,
        metrics: Metrics,
    ) -> None:
        self._account = account
        self._cloud = cloud
        self._endpoints = endpoints
        self._metrics = metrics
        endpoints.sampled = self._sample
        self._copies = Copies(hosting, endpoints.fleets)
        self._changes = Changes(account, "component")
        self.last_asked: dict[Key, float] = {}
        """When a component was last invoked, by the monotonic clock."""

    def service(self, control: Service) -> Service:
        """The handlers, added to the control plane's."""
        return control.on(
            CreateInferenceComponent=self._create,
            DescribeInferenceComponent=lambda call: self._shown(self._need(call)),
            ListInferenceComponents=self._list,
            UpdateInferenceComponent=self._update,
            UpdateInferenceComponentRuntimeConfig=self._update_count,
            DeleteInferenceComponent=self._delete,
        )

    # ------------------------------------------------------------------------- for others

    def on(self, region: str, endpoint: str) -> list[Json]:
        """The components of an endpoint."""
        return [item for item in self._kept(region).values() if item["EndpointName"] == endpoint]

    def find(self, region: str, name: str) -> Json | None:
        """A component, or None."""
        found: Json | None = self._kept(region).get(name)
        return found

    def all(self) -> list[tuple[Key, Json]]:
        """Every component."""
        return [
            ((region, name), item)
            for region in self._account.known_regions()
            for name, item in self._kept(region).items()
        ]

    def pick(self, region: str, name: str) -> Instance | None:
        """The copy with the fewest requests; None where no copy can answer."""
        return self._copies.pick((region, name))

    def asked(self, region: str, name: str) -> None:
        """Remember that a component was invoked now."""
        self.last_asked[region, name] = time.monotonic()

    def inflight(self, region: str, name: str) -> int:
        """Requests that are being answered."""
        return self._copies.inflight((region, name))

    def set_copies(self, region: str, name: str, count: int) -> None:
        """Begin to change the number of copies.

        Raises:
            AwsError: It is being made or changed.
        """
        item = self._kept(region)[name]
        self._check_settled(item, "update")
        if item["RuntimeConfig"]["DesiredCopyCount"] == count:
            return
        before = int(item["RuntimeConfig"]["CurrentCopyCount"])
        item["RuntimeConfig"]["DesiredCopyCount"] = count
        item.pop("FailureReason", None)
        self._set(item, "Updating")
        self._changes.begin((region, name), self._scale((region, name), before))

    def resume(self) -> None:
        """Take up what was there before the rehearsal was started again."""
        for key, item in self.all():
            match item["InferenceComponentStatus"]:
                case "Failed":
                    continue
                case "Deleting":
                    self._changes.begin(key, self._end(key))
                case _:
                    self._changes.begin(key, self._scale(key, 0, again=True))

    async def clear(self) -> None:
        """Stop everything at once; nothing is left to delete."""
        await self._changes.stop()
        self._copies.clear()
        self.last_asked.clear()

    # ------------------------------------------------------------------------- requests

    def _create(self, call: Call) -> Json:
        name, region = call.text("InferenceComponentName"), call.region
        if not _NAME.fullmatch(name):
            raise AwsError(
                "ValidationException",
                f"1 validation error detected: Value '{name}' at 'inferenceComponentName' failed "
                "to satisfy constraint: Member must satisfy regular expression pattern: "
                "^[a-zA-Z0-9]([\\-a-zA-Z0-9]*[a-zA-Z0-9])?$",
            )
        if name in self._kept(region):
            # This rehearsal's words, after those of endpoints.
            raise AwsError(
                "ValidationException",
                f'Cannot create already existing inference component "{self._arn(region, name)}".',
            )
        endpoint = self._endpoints.find(region, call.text("EndpointName"))
        variant = self._variant(endpoint, call.text("VariantName"))
        if endpoint["EndpointStatus"] != "InService":
            # That it is refused was reported (stdapi.ai); the words are this rehearsal's.
            raise AwsError(
                "ValidationException",
                f'Endpoint "{endpoint["EndpointArn"]}" is not InService: inference components '
                f"cannot be created while it is {endpoint['EndpointStatus']}.",
            )
        count = int((call.params.get("RuntimeConfig") or {}).get("CopyCount") or 0)
        if count < 1:
            raise AwsError(
                "ValidationException", "Inference components copy count an integer larger than 0"
            )
        spec = self._spec(region, dict(call.params.get("Specification") or {}))
        now = self._account.seconds()
        item: Json = {
            "InferenceComponentName": name,
            "InferenceComponentArn": self._arn(region, name),
            "EndpointName": endpoint["EndpointName"],
            "EndpointArn": endpoint["EndpointArn"],
            "VariantName": variant["VariantName"],
            "InferenceComponentStatus": "Creating",
            "RuntimeConfig": {"DesiredCopyCount": count, "CurrentCopyCount": 0},
            "CreationTime": now,
            "LastModifiedTime": now,
            "_spec": spec,
            "_tags": list(call.params.get("Tags") or []),
        }
        self._kept(region)[name] = item
        self._changes.begin((region, name), self._scale((region, name), 0))
        return {"InferenceComponentArn": item["InferenceComponentArn"]}

    def _update(self, call: Call) -> Json:
        item = self._need(call)
        self._check_settled(item, "update")
        asked = call.params.get("Specification")
        if asked:
            item["_next"] = self._spec(call.region, dict(asked))
        count = (call.params.get("RuntimeConfig") or {}).get("CopyCount")
        if count is not None:
            item["RuntimeConfig"]["DesiredCopyCount"] = int(count)
        item.pop("FailureReason", None)
        self._set(item, "Updating")
        key = (call.region, str(item["InferenceComponentName"]))
        self._changes.begin(key, self._replace(key))
        return {"InferenceComponentArn": item["InferenceComponentArn"]}

    def _update_count(self, call: Call) -> Json:
        item = self._need(call)
        count = (call.params.get("DesiredRuntimeConfig") or {}).get("CopyCount")
        self.set_copies(call.region, str(item["InferenceComponentName"]), int(count or 0))
        return {"InferenceComponentArn": item["InferenceComponentArn"]}

    def _delete(self, call: Call) -> Json:
        item = self._need(call)
        self._check_settled(item, "delete")
        self._set(item, "Deleting")
        key = (call.region, str(item["InferenceComponentName"]))
        self._changes.begin(key, self._end(key))
        return {}

    def _list(self, call: Call) -> Json:
        keys = (
            "InferenceComponentName", "InferenceComponentArn", "EndpointName", "EndpointArn",
            "VariantName", "InferenceComponentStatus", "CreationTime", "LastModifiedTime",
        )  # fmt: skip
        found = [
            {key: item[key] for key in keys}
            for name, item in self._kept(call.region).items()
            if call.text("NameContains") in name
            and call.text("EndpointNameEquals") in {"", item["EndpointName"]}
            and call.text("VariantNameEquals") in {"", item["VariantName"]}
            and call.text("StatusEquals") in {"", item["InferenceComponentStatus"]}
        ]
        found.sort(key=lambda item: float(item["CreationTime"]), reverse=True)
        most = min(call.number("MaxResults", _DEFAULT_PAGE), _PAGE)
        return page(call, found, "InferenceComponents", most)

    # ------------------------------------------------------------------------- changes

    async def _scale(self, key: Key, before: int, *, again: bool = False) -> None:
        """Bring the number of copies to what is wanted; what cannot be had is given up.

        A component that is being made fails for want of it. One that is scaled keeps the copies it
        has, and says why in FailureReason (what AWS does then is not documented).
        """
        item = self._kept(key[0])[key[1]]
        config = item["RuntimeConfig"]
        copies = self._copies.of(key)
        if again:
            await self._copies.opened(key, item)
        try:
            while len(copies) > int(config["DesiredCopyCount"]):
                await self._copies.stop(copies.pop())
                self._count(key)
            missing = int(config["DesiredCopyCount"]) - len(copies)
            copies += await self._start(key, item, item["_spec"], missing, again=again)
            self._count(key)
        except HostingError as error:
            item["FailureReason"] = str(error)
            if item["InferenceComponentStatus"] == "Creating":
                self._set(item, "Failed")
                return
            config["DesiredCopyCount"] = before
        else:
            item.pop("FailureReason", None)
        await asyncio.sleep(self._cloud.after(_SETTLE_S))
        self._set(item, "InService")

    async def _replace(self, key: Key) -> None:
        """Put other settings on each copy: the new ones first, then the old ones go."""
        item = self._kept(key[0])[key[1]]
        spec = item.pop("_next", item["_spec"])
        copies = self._copies.of(key)
        old = list(copies)
        wanted = int(item["RuntimeConfig"]["DesiredCopyCount"])
        try:
            copies[:] = await self._start(key, item, spec, wanted)
        except HostingError as error:
            item["FailureReason"] = str(error)
        else:
            item["_spec"] = spec
            for made in old:
                await self._copies.stop(made)
        self._count(key)
        self._set(item, "InService")

    async def _end(self, key: Key) -> None:
        copies = self._copies.of(key)
        while copies:
            await self._copies.stop(copies.pop())
        await asyncio.sleep(self._cloud.after(_DELETING_S))
        self._kept(key[0]).pop(key[1], None)

    async def _start(
        self, key: Key, item: Json, spec: Json, count: int, *, again: bool = False
    ) -> list[Copy]:
        """Start copies while the change goes on that they are for.

        Raises:
            HostingError: There is no room for one, or it did not come up.
        """

        def wanted() -> bool:
            return self._changes.going_on(key)

        return await self._copies.start(key, item, spec, count, wanted, again)

    # ------------------------------------------------------------------------- helpers

    def _sample(self) -> None:
        """Write down what copies use."""
        for (region, name), item in self.all():
            copies = self._copies.of((region, name))
            if not copies:
                continue
            env = copies[0].group.container.get("Environment") or {}
            share = float(env.get("SM_VLLM_GPU_MEMORY_UTILIZATION") or 0.9)
            self._metrics.sample(
                region,
                str(item["EndpointName"]),
                str(item["VariantName"]),
                gpu_memory_share=share,
                component=name,
            )

    def _kept(self, region: str) -> dict[str, Json]:
        found: dict[str, Json] = self._account.region(region).setdefault("components", {})
        return found

    def _arn(self, region: str, name: str) -> str:
        return self._account.arn("sagemaker", region, f"inference-component/{name}")

    def _need(self, call: Call) -> Json:
        name = call.text("InferenceComponentName")
        found = self.find(call.region, name)
        if found is None:
            raise AwsError(
                "ValidationException",
                f'Could not find inference component "{self._arn(call.region, name)}".',
            )
        return found

    @staticmethod
    def _variant(endpoint: Json, name: str) -> Json:
        variants: list[Json] = endpoint["_config"]["ProductionVariants"]
        found = next((item for item in variants if item["VariantName"] == name), None)
        if found is None or not hosts_components(found):
            raise AwsError(
                "ValidationException",
                "Inference Components are not supported in this Endpoint. Please make sure this "
                "endpoint can deploy inference components.",
            )
        return found

    def _spec(self, region: str, spec: Json) -> Json:
        """A specification with the model that it names, as the model is now.

        Raises:
            AwsError: It names none, or one that is not there.
        """
        model = str(spec.get("ModelName") or "")
        models = self._account.region(region)["models"]
        if model not in models:
            arn = self._account.arn("sagemaker", region, f"model/{model}")
            raise AwsError("ValidationException", f'Could not find model "{arn}".')
        if not spec.get("ComputeResourceRequirements"):
            raise AwsError("ValidationException", "ComputeResourceRequirements must be specified.")
        return spec | {"_model": copy.deepcopy(models[model])}

    def _shown(self, item: Json) -> Json:
        spec = item["_spec"]
        image = spec["_model"]["PrimaryContainer"]["Image"]
        shown = {key: value for key, value in item.items() if not key.startswith("_")}
        shown["Specification"] = {
            key: value for key, value in spec.items() if not key.startswith("_")
        } | {
            "Container": {
                "DeployedImage": {
                    "SpecifiedImage": image,
                    "ResolvedImage": image,
                    "ResolutionTime": item["CreationTime"],
                }
            }
        }
        return shown

    def _check_settled(self, item: Json, verb: str) -> None:
        status = str(item["InferenceComponentStatus"])
        if status in _DOING:
            raise AwsError(
                "ValidationException",
                f'Cannot {verb} inference component "{item["InferenceComponentArn"]}" while it is '
                f"in state {_DOING[status]}",
            )

    def _count(self, key: Key) -> None:
        item = self._kept(key[0]).get(key[1])
        if item is not None:
            item["RuntimeConfig"]["CurrentCopyCount"] = len(self._copies.of(key))
            self._account.changed()

    def _set(self, item: Json, status: str) -> None:
        item["InferenceComponentStatus"] = status
        item["LastModifiedTime"] = self._account.seconds()
        self._account.changed()
