"""Whether this process itself runs on a virtual machine of Google's, and on which."""

from __future__ import annotations

import functools
import urllib.error
import urllib.request
from pathlib import Path

_PRODUCT = Path("/sys/class/dmi/id/product_name")
# By address: a name would be asked for in other networks too.
_NUMBER = "http://169.254.169.254/computeMetadata/v1/instance/id"
_TIMEOUT_S = 1.0


@functools.cache
def own_number(product: Path = _PRODUCT, url: str = _NUMBER) -> str:
    """The number of the virtual machine this process runs on; empty where it is none of Google's.

    Blocks for up to a second, and only on a machine whose firmware says "Google Compute Engine".

    Args:
        product: Where the firmware says what the machine is.
        url: Where Google says which.
    """
    try:
        if "Google Compute Engine" not in product.read_text(encoding="utf-8"):
            return ""
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})  # noqa: S310 (http, link-local)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return str(answer.read().decode("ascii")).strip()
    except (OSError, ValueError):
        return ""
