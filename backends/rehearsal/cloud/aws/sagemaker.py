"""SageMaker's control plane: models, endpoint configurations, endpoints and their tags."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.catalogue import (
    IMAGE_ACCOUNT,
    IMAGE_REPOSITORY,
    NEVER_ZERO,
    image_tags,
)
from backends.rehearsal.cloud.aws.endpoint_configs import check_variants, hosts_components
from backends.rehearsal.cloud.aws.endpoints import public
from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service, page
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account
    from backends.rehearsal.cloud.aws.components import Components
    from backends.rehearsal.cloud.aws.endpoints import Endpoints
    from backends.rehearsal.cloud.aws.identity import Iam
    from backends.rehearsal.cloud.aws.s3 import S3

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_IMAGE = re.compile(
    r"(\d{12})\.dkr\.ecr\.([\w-]+)\.amazonaws\.com/([\w./-]+?)(?::([\w.-]+))?(?:@.*)?"
)
_PAGE = 100
_DEFAULT_PAGE = 10

# Kind -> where it is kept, its names in requests and answers, and how errors call it.
_MODEL = ("models", "Model", "model", "model")
_CONFIG = ("configs", "EndpointConfig", "endpoint-config", "endpoint configuration")
_ENDPOINT = ("endpoints", "Endpoint", "endpoint", "endpoint")
_Kind = tuple[str, str, str, str]


class SageMaker:
    """The requests of the control plane.

    Args:
        account: Where all is kept.
        iam: Roles.
        s3: Weights of one's own.
        endpoints: What becomes of endpoints.
        components: What is hosted on them.
    """

    def __init__(
        self,
        account: Account,
        iam: Iam,
        s3: S3,
        endpoints: Endpoints,
        components: Components,
    ) -> None:
        self._account = account
        self._iam = iam
        self._s3 = s3
        self._endpoints = endpoints
        self._components = components

    def service(self) -> Service:
        """The service's handlers."""
        return Service("sagemaker", "json", "sagemaker").on(
            CreateModel=self._create_model,
            DescribeModel=lambda call: public(self._need(call, _MODEL)),
            ListModels=lambda call: self._list(call, _MODEL),
            DeleteModel=lambda call: self._drop(call, _MODEL),
            CreateEndpointConfig=self._create_config,
            DescribeEndpointConfig=lambda call: public(self._need(call, _CONFIG)),
            ListEndpointConfigs=lambda call: self._list(call, _CONFIG),
            DeleteEndpointConfig=lambda call: self._drop(call, _CONFIG),
            CreateEndpoint=self._create_endpoint,
            DescribeEndpoint=lambda call: public(
                self._endpoints.find(call.region, call.text("EndpointName"))
            ),
            ListEndpoints=lambda call: self._list(call, _ENDPOINT),
            UpdateEndpoint=self._update_endpoint,
            UpdateEndpointWeightsAndCapacities=self._weigh,
            DeleteEndpoint=self._delete_endpoint,
            AddTags=self._add_tags,
            ListTags=lambda call: {"Tags": self._tagged(call)["_tags"]},
            DeleteTags=self._delete_tags,
        )

    # ------------------------------------------------------------------------- models

    def _create_model(self, call: Call) -> Json:
        container = call.params.get("PrimaryContainer") or {}
        self._check_name(call, _MODEL)
        self._check_image(call.region, str(container.get("Image", "")))
        role = call.text("ExecutionRoleArn")
        if not self._iam.assumable(role):
            raise AwsError(
                "ValidationException",
                f"Could not assume role {role}. Please ensure that the role exists and allows "
                "principal 'sagemaker.amazonaws.com' to assume the role.",
            )
        source = (container.get("ModelDataSource") or {}).get("S3DataSource") or {}
        uri = str(source.get("S3Uri") or "")
        if uri and not (
            self._iam.may(role, "s3:GetObject") and self._s3.may_read(call.region, uri)
        ):
            raise AwsError(
                "ValidationException",
                f'Could not access model data at {uri}. Please ensure that the role "{role}" '
                "exists and that its trust relationship policy allows the action "
                '"sts:AssumeRole" for the service principal "sagemaker.amazonaws.com". Also '
                'ensure that the role has "s3:GetObject" permissions and that the object is '
                f"located in {call.region}.",
            )
        made = self._keep(call, _MODEL)
        return {"ModelArn": made["ModelArn"]}

    def _check_image(self, region: str, image: str) -> None:
        found = _IMAGE.fullmatch(image)
        if found is None:
            raise AwsError(
                "ValidationException",
                f'Using non-ECR image "{image}" without Vpc repository access mode is not '
                "supported.",
            )
        owner, place, repository, tag = found.groups()
        known = owner == IMAGE_ACCOUNT and repository == IMAGE_REPOSITORY
        if place != region or not known or (tag or "latest") not in image_tags():
            raise AwsError("ValidationException", f"Requested image {image} not found.")

    # ------------------------------------------------------------------------- configurations

    def _create_config(self, call: Call) -> Json:
        self._check_name(call, _CONFIG)
        variants = call.params.get("ProductionVariants") or []
        check_variants(
            variants,
            role=call.text("ExecutionRoleArn"),
            zero=call.region not in NEVER_ZERO,
        )
        models = self._account.region(call.region)["models"]
        for variant in variants:
            name = variant.get("ModelName")
            if name and name not in models:
                arn = self._account.arn("sagemaker", call.region, f"model/{name}")
                raise AwsError("ValidationException", f'Could not find model "{arn}".')
        made = self._keep(call, _CONFIG)
        return {"EndpointConfigArn": made["EndpointConfigArn"]}

    # ------------------------------------------------------------------------- endpoints

    def _create_endpoint(self, call: Call) -> Json:
        self._check_name(call, _ENDPOINT)
        config = self._settled_config(call)
        made = self._endpoints.create(call.region, call.text("EndpointName"), config)
        made["_tags"] = list(call.params.get("Tags") or [])
        return {"EndpointArn": made["EndpointArn"]}

    def _update_endpoint(self, call: Call) -> Json:
        name = call.text("EndpointName")
        endpoint = self._endpoints.find(call.region, name)
        config = self._settled_config(call)
        if config["EndpointConfigName"] == endpoint["EndpointConfigName"]:
            raise AwsError(
                "ValidationException",
                f'Cannot update endpoint "{endpoint["EndpointArn"]}" with endpoint configuration '
                f'"{config["EndpointConfigArn"]}" as it is already in use.',
            )
        self._endpoints.update(
            call.region,
            name,
            config,
            deployment=dict(call.params.get("DeploymentConfig") or {}),
            retain=bool(call.params.get("RetainAllVariantProperties")),
        )
        return {"EndpointArn": endpoint["EndpointArn"]}

    def _weigh(self, call: Call) -> Json:
        name = call.text("EndpointName")
        wanted = list(call.params.get("DesiredWeightsAndCapacities") or [])
        self._endpoints.weigh(call.region, name, wanted)
        return {"EndpointArn": self._endpoints.find(call.region, name)["EndpointArn"]}

    def _delete_endpoint(self, call: Call) -> Json:
        name = call.text("EndpointName")
        hosted = self._components.on(call.region, name)
        if hosted:
            # Reports differ on whether SageMaker refuses this or leaves the components behind;
            # refusing is what whoever relies on the other would notice. The words are ours.
            which = ", ".join(item["InferenceComponentName"] for item in hosted)
            arn = self._endpoints.find(call.region, name)["EndpointArn"]
            raise AwsError(
                "ValidationException",
                f'Cannot delete endpoint "{arn}" '
                f"while it hosts inference components: {which}. Delete them first.",
            )
        self._endpoints.delete(call.region, call.text("EndpointName"))
        return {}

    def _settled_config(self, call: Call) -> Json:
        """A configuration as it is now, with its models: an endpoint keeps what it was made of.

        Raises:
            AwsError: It, or a model of it, does not exist.
        """
        config: Json = copy.deepcopy(self._need(call, _CONFIG))
        models = self._account.region(call.region)["models"]
        for variant in config["ProductionVariants"]:
            if hosts_components(variant):
                continue
            name = str(variant.get("ModelName"))
            if name not in models:
                arn = self._account.arn("sagemaker", call.region, f"model/{name}")
                raise AwsError("ValidationException", f'Could not find model "{arn}".')
            variant["_model"] = copy.deepcopy(models[name])
        return config

    # ------------------------------------------------------------------------- all kinds

    def _check_name(self, call: Call, kind: _Kind) -> None:
        place, title, path, words = kind
        name = call.text(f"{title}Name")
        if not _NAME.fullmatch(name):
            field = title[0].lower() + title[1:]
            raise AwsError(
                "ValidationException",
                f"1 validation error detected: Value '{name}' at '{field}Name' failed to satisfy "
                "constraint: Member must satisfy regular expression pattern: "
                "^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
            )
        if name in self._account.region(call.region)[place]:
            arn = self._account.arn("sagemaker", call.region, f"{path}/{name}")
            raise AwsError(
                "ValidationException", f'Cannot create already existing {words} "{arn}".'
            )

    def _keep(self, call: Call, kind: _Kind) -> Json:
        place, title, path, _ = kind
        name = call.text(f"{title}Name")
        made: Json = {
            **{key: value for key, value in call.params.items() if key != "Tags"},
            f"{title}Arn": self._account.arn("sagemaker", call.region, f"{path}/{name}"),
            "CreationTime": self._account.seconds(),
            "_tags": list(call.params.get("Tags") or []),
        }
        self._account.region(call.region)[place][name] = made
        self._account.changed()
        return made

    def _need(self, call: Call, kind: _Kind) -> Json:
        place, title, path, words = kind
        name = call.text(f"{title}Name")
        found: Json | None = self._account.region(call.region)[place].get(name)
        if found is None:
            arn = self._account.arn("sagemaker", call.region, f"{path}/{name}")
            raise AwsError("ValidationException", f'Could not find {words} "{arn}".')
        return found

    def _drop(self, call: Call, kind: _Kind) -> Json:
        self._need(call, kind)
        del self._account.region(call.region)[kind[0]][call.text(f"{kind[1]}Name")]
        self._account.changed()
        return {}

    def _list(self, call: Call, kind: _Kind) -> Json:
        place, title, _, _ = kind
        keys = [f"{title}Name", f"{title}Arn", "CreationTime"]
        if kind is _ENDPOINT:
            keys += ["LastModifiedTime", "EndpointStatus"]
        found = [
            {key: item[key] for key in keys}
            for name, item in self._account.region(call.region)[place].items()
            if call.text("NameContains") in name
            and call.text("StatusEquals") in {"", item.get("EndpointStatus", "")}
        ]
        found.sort(key=lambda item: float(item["CreationTime"]))
        if call.params.get("SortOrder", "Descending") == "Descending":
            found.reverse()
        most = call.number("MaxResults", _DEFAULT_PAGE)
        return page(call, found, f"{title}s", min(most, _PAGE))

    # ------------------------------------------------------------------------- tags

    def _tagged(self, call: Call) -> Json:
        arn = call.text("ResourceArn")
        region = self._account.region(call.region)
        for place, title, _, _ in (_MODEL, _CONFIG, _ENDPOINT):
            for item in region[place].values():
                if item[f"{title}Arn"] == arn:
                    found: Json = item
                    return found
        component = self._components.find(call.region, arn.rpartition("inference-component/")[2])
        if component is not None:
            return component
        raise AwsError("ValidationException", f"Could not find resource {arn}.")

    def _add_tags(self, call: Call) -> Json:
        item = self._tagged(call)
        new = list(call.params.get("Tags") or [])
        keys = {tag["Key"] for tag in new}
        item["_tags"] = [tag for tag in item["_tags"] if tag["Key"] not in keys] + new
        self._account.changed()
        return {"Tags": item["_tags"]}

    def _delete_tags(self, call: Call) -> Json:
        item = self._tagged(call)
        keys = call.params.get("TagKeys") or []
        item["_tags"] = [tag for tag in item["_tags"] if tag["Key"] not in keys]
        self._account.changed()
        return {}
