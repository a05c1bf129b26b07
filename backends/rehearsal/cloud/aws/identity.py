"""STS and IAM: who asks, and the roles that SageMaker works with."""

from __future__ import annotations

import fnmatch
import json
import secrets
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from backends.rehearsal.cloud.aws.account import ACCOUNT_ID, USER_ARN, Account
from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service, iso
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

# "IAM is eventually consistent": the reference waits ten seconds after a role was made.
PROPAGATION_S = 10.0

_MANAGED = {
    f"arn:aws:iam::aws:policy/{name}": actions
    for name, actions in {
        "AmazonSageMakerFullAccess": ("sagemaker:*", "ecr:*", "logs:*", "cloudwatch:*", "s3:*"),
        "AmazonSageMakerReadOnly": ("sagemaker:Describe*", "sagemaker:List*"),
        "AmazonEC2ContainerRegistryReadOnly": ("ecr:*",),
        "CloudWatchLogsFullAccess": ("logs:*",),
        "AmazonS3ReadOnlyAccess": ("s3:Get*", "s3:List*"),
    }.items()
}


def sts() -> Service:
    """The Security Token Service."""
    service = Service("sts", "query", "sts", "https://sts.amazonaws.com/doc/2011-06-15/")
    return service.on(
        GetCallerIdentity=lambda _: {
            "Arn": USER_ARN,
            "UserId": "AIDAREHEARSAL00000001",
            "Account": ACCOUNT_ID,
        }
    )


class Iam:
    """Roles and their policies.

    Args:
        account: Where roles are kept.
        cloud: Its speed.
    """

    def __init__(self, account: Account, cloud: Cloud) -> None:
        self._account = account
        self._cloud = cloud

    def service(self) -> Service:
        """The service's handlers."""
        service = Service("iam", "query", "iam", "https://iam.amazonaws.com/doc/2010-05-08/")
        return service.on(
            CreateRole=self._create,
            GetRole=lambda call: {"Role": _shown(self._role(call.text("RoleName")))},
            ListRoles=self._list,
            DeleteRole=self._delete,
            UpdateAssumeRolePolicy=self._update_trust,
            PutRolePolicy=self._put_policy,
            GetRolePolicy=self._get_policy,
            DeleteRolePolicy=self._delete_policy,
            ListRolePolicies=lambda call: {
                "PolicyNames": list(self._role(call.text("RoleName"))["policies"]),
                "IsTruncated": False,
            },
            AttachRolePolicy=self._attach,
            DetachRolePolicy=self._detach,
            ListAttachedRolePolicies=lambda call: {
                "AttachedPolicies": [
                    {"PolicyName": arn.rpartition("/")[2], "PolicyArn": arn}
                    for arn in self._role(call.text("RoleName"))["attached"]
                ],
                "IsTruncated": False,
            },
            ListRoleTags=lambda call: {
                "Tags": self._role(call.text("RoleName"))["tags"],
                "IsTruncated": False,
            },
            TagRole=self._tag,
            UntagRole=self._untag,
            ListInstanceProfilesForRole=lambda call: {
                "InstanceProfiles": [],
                "IsTruncated": not self._role(call.text("RoleName")),
            },
        )

    # ------------------------------------------------------------------------- for SageMaker

    def assumable(self, arn: str) -> bool:
        """Whether SageMaker can take on a role: it exists, trusts it, and AWS knows it by now."""
        role = self._account.roles.get(arn.rpartition("/")[2])
        if role is None or role["arn"] != arn:
            return False
        known = time.time() - role["created"] >= self._cloud.after(PROPAGATION_S)
        trust = json.dumps(role["trust"])
        return known and "sagemaker.amazonaws.com" in trust and "sts:AssumeRole" in trust

    def may(self, arn: str, action: str) -> bool:
        """Whether a role's policies allow an action on anything."""
        role = self._account.roles.get(arn.rpartition("/")[2])
        if role is None:
            return False
        allowed = [item for policy in role["attached"] for item in _MANAGED.get(policy, ())]
        for document in role["policies"].values():
            statements = document.get("Statement") or []
            for statement in statements if isinstance(statements, list) else [statements]:
                if statement.get("Effect") == "Allow":
                    actions = statement.get("Action") or []
                    allowed += actions if isinstance(actions, list) else [actions]
        return any(fnmatch.fnmatch(action.lower(), item.lower()) for item in allowed)

    # ------------------------------------------------------------------------- inside

    def _role(self, name: str) -> Json:
        role = self._account.roles.get(name)
        if role is None:
            raise AwsError("NoSuchEntity", f"The role with name {name} cannot be found.", 404)
        return role

    def _create(self, call: Call) -> Json:
        name = call.text("RoleName")
        if name in self._account.roles:
            raise AwsError("EntityAlreadyExists", f"Role with name {name} already exists.", 409)
        path = call.text("Path") or "/"
        role: Json = {
            "name": name,
            "path": path,
            "id": f"AROA{secrets.token_hex(8).upper()}",
            "arn": f"arn:aws:iam::{ACCOUNT_ID}:role{path}{name}",
            "created": time.time(),
            "trust": _document(call.text("AssumeRolePolicyDocument")),
            "description": call.text("Description"),
            "tags": call.params.get("Tags") or [],
            "policies": {},
            "attached": [],
        }
        self._account.roles[name] = role
        self._account.changed()
        return {"Role": _shown(role)}

    def _list(self, call: Call) -> Json:
        prefix = call.text("PathPrefix") or "/"
        found = [role for role in self._account.roles.values() if role["path"].startswith(prefix)]
        return {"Roles": [_shown(role) for role in found], "IsTruncated": False}

    def _delete(self, call: Call) -> Json:
        role = self._role(call.text("RoleName"))
        if role["attached"]:
            raise AwsError(
                "DeleteConflict", "Cannot delete entity, must detach all policies first.", 409
            )
        if role["policies"]:
            raise AwsError(
                "DeleteConflict", "Cannot delete entity, must delete policies first.", 409
            )
        del self._account.roles[role["name"]]
        self._account.changed()
        return {}

    def _update_trust(self, call: Call) -> Json:
        self._role(call.text("RoleName"))["trust"] = _document(call.text("PolicyDocument"))
        self._account.changed()
        return {}

    def _put_policy(self, call: Call) -> Json:
        role = self._role(call.text("RoleName"))
        role["policies"][call.text("PolicyName")] = _document(call.text("PolicyDocument"))
        self._account.changed()
        return {}

    def _get_policy(self, call: Call) -> Json:
        role, name = self._role(call.text("RoleName")), call.text("PolicyName")
        if name not in role["policies"]:
            raise _no_policy(name)
        return {
            "RoleName": role["name"],
            "PolicyName": name,
            "PolicyDocument": quote(json.dumps(role["policies"][name])),
        }

    def _delete_policy(self, call: Call) -> Json:
        role, name = self._role(call.text("RoleName")), call.text("PolicyName")
        if role["policies"].pop(name, None) is None:
            raise _no_policy(name)
        self._account.changed()
        return {}

    def _attach(self, call: Call) -> Json:
        role, arn = self._role(call.text("RoleName")), call.text("PolicyArn")
        if arn not in _MANAGED:
            raise AwsError(
                "NoSuchEntity", f"Policy {arn} does not exist or is not attachable.", 404
            )
        if arn not in role["attached"]:
            role["attached"].append(arn)
        self._account.changed()
        return {}

    def _detach(self, call: Call) -> Json:
        role, arn = self._role(call.text("RoleName")), call.text("PolicyArn")
        if arn not in role["attached"]:
            raise AwsError("NoSuchEntity", f"Policy {arn} was not found.", 404)
        role["attached"].remove(arn)
        self._account.changed()
        return {}

    def _tag(self, call: Call) -> Json:
        role = self._role(call.text("RoleName"))
        new = call.params.get("Tags") or []
        keys = {tag["Key"] for tag in new}
        role["tags"] = [tag for tag in role["tags"] if tag["Key"] not in keys] + new
        self._account.changed()
        return {}

    def _untag(self, call: Call) -> Json:
        role = self._role(call.text("RoleName"))
        keys = call.params.get("TagKeys") or []
        role["tags"] = [tag for tag in role["tags"] if tag["Key"] not in keys]
        self._account.changed()
        return {}


def _no_policy(name: str) -> AwsError:
    return AwsError("NoSuchEntity", f"The role policy with name {name} cannot be found.", 404)


def _document(text: str) -> Json:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or "Statement" not in value:
        raise AwsError("MalformedPolicyDocument", "This policy contains invalid Json")
    return value


def _shown(role: Json) -> Json:
    shown = {
        "Path": role["path"],
        "RoleName": role["name"],
        "RoleId": role["id"],
        "Arn": role["arn"],
        "CreateDate": iso(role["created"]),
        "AssumeRolePolicyDocument": quote(json.dumps(role["trust"])),
        "MaxSessionDuration": 3600,
    }
    if role["description"]:
        shown["Description"] = role["description"]
    if role["tags"]:
        shown["Tags"] = role["tags"]
    return shown
