"""Circumstances of the account that faults change: login, rights, quota, capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.catalogue import REGIONS, quota_name
from backends.rehearsal.cloud.faults import FaultBook, FaultError, Undo
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account


def register(book: FaultBook, account: Account) -> None:
    """Teach the fault book AWS's circumstances.

    | kind | fields |
    |---|---|
    | `aws-login` | none: the login has expired |
    | `aws-deny` | `action`: a permission, or a pattern of them (`sagemaker:*`) |
    | `aws-quota` | `type` (`ml.g6.xlarge`), `value`, `region` (default: all) |
    | `aws-no-capacity` | `where`: pattern of `region/type` (`us-east-2/*`; default: everywhere) |
    """

    def login(values: Json) -> Undo:
        del values
        account.now.expired = True

        def undo() -> None:
            account.now.expired = False

        return undo

    def deny(values: Json) -> Undo:
        action = str(values["action"])
        account.now.denied.append(action)
        return lambda: account.now.denied.remove(action)

    def no_capacity(values: Json) -> Undo:
        where = str(values.get("where", "*"))
        account.now.no_capacity.append(where)
        return lambda: account.now.no_capacity.remove(where)

    def quota(values: Json) -> Undo:
        name = quota_name(str(values["type"]))
        wanted = str(values.get("region", ""))
        if wanted and wanted not in REGIONS:
            raise FaultError(f"no region {wanted!r}; known: {', '.join(REGIONS)}")
        before: dict[str, float | None] = {}
        for region in [wanted] if wanted else REGIONS:
            quotas = account.region(region)["quotas"]
            before[region] = quotas.get(name)
            quotas[name] = float(values["value"])

        def undo() -> None:
            for region, value in before.items():
                quotas = account.region(region)["quotas"]
                if value is None:
                    quotas.pop(name, None)
                else:
                    quotas[name] = value

        return undo

    book.register("aws-login", login)
    book.register("aws-deny", deny)
    book.register("aws-quota", quota)
    book.register("aws-no-capacity", no_capacity)
