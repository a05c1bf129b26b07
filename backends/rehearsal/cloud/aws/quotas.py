"""Service Quotas: SageMaker's, of which there are many, page by page and one caller at a time."""

from __future__ import annotations

import asyncio
import secrets

from backends.rehearsal.cloud.aws.account import ACCOUNT_ID, Account
from backends.rehearsal.cloud.aws.catalogue import quota_code
from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service, page
from backends.rehearsal.cloud.web import Json

# A page takes this long, in real time: whoever asks for several at once is seen.
_PAGE_S = 0.02
_PAGE = 100


class Quotas:
    """The quotas of the account.

    Args:
        account: Where they are kept.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._asking = 0

    def service(self) -> Service:
        """The service's handlers."""
        service = Service("servicequotas", "json", "servicequotas")
        return service.on(
            ListServiceQuotas=self._list,
            ListAWSDefaultServiceQuotas=self._list,
            GetServiceQuota=self._get,
            GetAWSDefaultServiceQuota=self._get,
            RequestServiceQuotaIncrease=self._request,
            ListRequestedServiceQuotaChangeHistory=lambda call: {
                "RequestedQuotas": self._account.region(call.region)["quota_requests"]
            },
        )

    async def _list(self, call: Call) -> Json:
        if self._asking:
            raise AwsError("TooManyRequestsException", "Rate exceeded")
        self._asking += 1
        try:
            await asyncio.sleep(_PAGE_S)
        finally:
            self._asking -= 1
        self._known(call)
        quotas: dict[str, float] = self._account.region(call.region)["quotas"]
        items = [_quota(call.region, name, value) for name, value in quotas.items()]
        return page(call, items, "Quotas", _PAGE)

    def _get(self, call: Call) -> Json:
        self._known(call)
        quotas = self._account.region(call.region)["quotas"]
        for name, value in quotas.items():
            if quota_code(name) == call.text("QuotaCode"):
                return {"Quota": _quota(call.region, name, value)}
        raise AwsError(
            "NoSuchResourceException",
            "The request failed because the specified quota does not exist.",
        )

    def _request(self, call: Call) -> Json:
        wanted = self._get(call)["Quota"]
        asked: Json = {
            "Id": secrets.token_hex(16),
            "ServiceCode": "sagemaker",
            "ServiceName": "Amazon SageMaker",
            "QuotaCode": wanted["QuotaCode"],
            "QuotaName": wanted["QuotaName"],
            "DesiredValue": float(call.params.get("DesiredValue") or 0),
            "Status": "PENDING",
            "Created": self._account.seconds(),
        }
        if asked["DesiredValue"] <= wanted["Value"]:
            raise AwsError(
                "IllegalArgumentException",
                "You must provide a quota value greater than the current quota value.",
            )
        self._account.region(call.region)["quota_requests"].append(asked)
        self._account.changed()
        return {"RequestedQuota": asked}

    @staticmethod
    def _known(call: Call) -> None:
        if call.text("ServiceCode") != "sagemaker":
            raise AwsError(
                "NoSuchResourceException",
                "The request failed because the specified service does not exist.",
            )


def _quota(region: str, name: str, value: float) -> Json:
    code = quota_code(name)
    return {
        "ServiceCode": "sagemaker",
        "ServiceName": "Amazon SageMaker",
        "QuotaArn": f"arn:aws:servicequotas:{region}:{ACCOUNT_ID}:sagemaker/{code}",
        "QuotaCode": code,
        "QuotaName": name,
        "Value": float(value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
