"""Networks, subnets, firewall rules, and routers with Cloud NAT."""

from __future__ import annotations

from backends.rehearsal.cloud.compute.catalogue import ZONES
from backends.rehearsal.cloud.compute.common import VERSION, Compute
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now


def _default_rule(name: str, ranges: list[str], allowed: list[Json]) -> Json:
    return {
        "name": name,
        "description": "Allow from default network",
        "priority": 65534,
        "direction": "INGRESS",
        "sourceRanges": ranges,
        "allowed": allowed,
        "disabled": False,
    }


# The rules that every default network begins with.
_DEFAULT_RULES: tuple[Json, ...] = (
    _default_rule("default-allow-icmp", ["0.0.0.0/0"], [{"IPProtocol": "icmp"}]),
    _default_rule(
        "default-allow-internal",
        ["10.128.0.0/9"],
        [
            {"IPProtocol": "tcp", "ports": ["0-65535"]},
            {"IPProtocol": "udp", "ports": ["0-65535"]},
            {"IPProtocol": "icmp"},
        ],
    ),
    _default_rule("default-allow-rdp", ["0.0.0.0/0"], [{"IPProtocol": "tcp", "ports": ["3389"]}]),
    _default_rule("default-allow-ssh", ["0.0.0.0/0"], [{"IPProtocol": "tcp", "ports": ["22"]}]),
)


class Networks:
    """Routes of networks and what is in them.

    Args:
        compute: What all parts stand on.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._world = compute.world

    def add_to(self, api: Api) -> None:
        """Register the routes."""
        add = api.add
        nets = VERSION + "/global/networks"
        add("GET", nets, self.networks, "compute.networks.list")
        add("GET", nets + r"/([^/]+)", self.network, "compute.networks.get")
        subnets = VERSION + r"/regions/([^/]+)/subnetworks"
        add("GET", subnets, self.subnets, "compute.subnetworks.list")
        add("GET", VERSION + "/aggregated/subnetworks", self.all_subnets)
        add("GET", subnets + r"/([^/]+)", self.subnet, "compute.subnetworks.get")
        add("PATCH", subnets + r"/([^/]+)", self.patch_subnet, "compute.subnetworks.update")
        add(
            "POST",
            subnets + r"/([^/]+)/setPrivateIpGoogleAccess",
            self.private_access,
            "compute.subnetworks.setPrivateIpGoogleAccess",
        )
        rules = VERSION + "/global/firewalls"
        add("GET", rules, self.rules, "compute.firewalls.list")
        add("POST", rules, self.add_rule, "compute.firewalls.create")
        add("GET", rules + r"/([^/]+)", self.rule, "compute.firewalls.get")
        add("DELETE", rules + r"/([^/]+)", self.remove_rule, "compute.firewalls.delete")
        routers = VERSION + r"/regions/([^/]+)/routers"
        add("GET", VERSION + "/aggregated/routers", self.all_routers, "compute.routers.list")
        add("GET", routers, self.routers, "compute.routers.list")
        add("POST", routers, self.add_router, "compute.routers.create")
        add("GET", routers + r"/([^/]+)", self.router, "compute.routers.get")
        add("PATCH", routers + r"/([^/]+)", self.change_router, "compute.routers.update")
        add("DELETE", routers + r"/([^/]+)", self.remove_router, "compute.routers.delete")
        add("GET", VERSION + "/global/addresses", self.addresses, "compute.addresses.list")
        add("GET", VERSION + "/aggregated/addresses", self.addresses, "compute.addresses.list")

    # ------------------------------------------------------------------------- networks

    def networks(self, request: Request, project: str) -> Json:
        """The default network."""
        return {
            "kind": "compute#networkList",
            "items": [self.network(request, project, "default")],
        }

    def network(self, request: Request, project: str, name: str) -> Json:
        """One network."""
        del request
        self._compute.check(project)
        url = self._compute.url
        if name != "default":
            raise self._compute.not_found(f"global/networks/{name}")
        return {
            "kind": "compute#network",
            "id": "4242",
            "name": name,
            "selfLink": url("global/networks/default"),
            "autoCreateSubnetworks": True,
            "subnetworks": [url(f"regions/{region}/subnetworks/default") for region in ZONES],
        }

    def subnets(self, request: Request, project: str, region: str) -> Json:
        """Subnets of a region."""
        return {
            "kind": "compute#subnetworkList",
            "items": [self.subnet(request, project, region, "default")],
        }

    def all_subnets(self, request: Request, project: str) -> Json:
        """Subnets of all regions."""
        return {
            "kind": "compute#subnetworkAggregatedList",
            "items": {
                f"regions/{region}": {
                    "subnetworks": [self.subnet(request, project, region, "default")]
                }
                for region in ZONES
            },
        }

    def subnet(self, request: Request, project: str, region: str, name: str) -> Json:
        """One subnet; every region has `default`, without Private Google Access at first."""
        del request
        self._compute.check(project)
        if region not in ZONES or name != "default":
            raise self._compute.not_found(f"regions/{region}/subnetworks/{name}")
        index = list(ZONES).index(region)
        return self._world.subnets.setdefault(
            f"{region}/{name}",
            {
                "kind": "compute#subnetwork",
                "id": str(5000 + index),
                "name": name,
                "fingerprint": "Zm9v",
                "ipCidrRange": f"10.{128 + 2 * index}.0.0/20",
                "privateIpGoogleAccess": False,
                "region": self._compute.url(f"regions/{region}"),
                "network": self._compute.url("global/networks/default"),
                "selfLink": self._compute.url(f"regions/{region}/subnetworks/{name}"),
            },
        )

    def private_access(self, request: Request, project: str, region: str, name: str) -> Json:
        """Switch Private Google Access of a subnet."""
        found = self.subnet(request, project, region, name)
        found["privateIpGoogleAccess"] = bool(request.json().get("privateIpGoogleAccess"))
        target = f"regions/{region}/subnetworks/{name}"
        return self._compute.at_once("setPrivateIpGoogleAccess", target)

    def patch_subnet(self, request: Request, project: str, region: str, name: str) -> Json:
        """Change a subnet."""
        found = self.subnet(request, project, region, name)
        found |= {key: value for key, value in request.json().items() if key != "fingerprint"}
        return self._compute.at_once("patch", f"regions/{region}/subnetworks/{name}")

    def addresses(self, request: Request, project: str) -> Json:
        """Reserved addresses: none."""
        del request
        self._compute.check(project)
        return {"kind": "compute#addressList", "items": []}

    # ------------------------------------------------------------------------- firewall rules

    def _rules(self) -> dict[str, Json]:
        if not self._world.options.get("firewalls_made"):
            self._world.options["firewalls_made"] = True
            for rule in _DEFAULT_RULES:
                self._world.firewalls[rule["name"]] = self._made_rule(rule)
        return self._world.firewalls

    def _made_rule(self, body: Json) -> Json:
        network = str(body.get("network") or "").rpartition("/")[2] or "default"
        return (
            {"priority": 1000, "direction": "INGRESS", "disabled": False}
            | body
            | {
                "kind": "compute#firewall",
                "id": str(10**18 + self._world.next()),
                "creationTimestamp": now(),
                "network": self._compute.url(f"global/networks/{network}"),
                "selfLink": self._compute.url(f"global/firewalls/{body['name']}"),
            }
        )

    def rules(self, request: Request, project: str) -> Json:
        """All firewall rules."""
        self._compute.check(project)
        items = list(self._rules().values())
        return {"kind": "compute#firewallList"} | page(request, items, "items", default=500)

    def rule(self, request: Request, project: str, name: str) -> Json:
        """One firewall rule."""
        del request
        self._compute.check(project)
        found = self._rules().get(name)
        if found is None:
            raise self._compute.not_found(f"global/firewalls/{name}")
        return found

    def add_rule(self, request: Request, project: str) -> Json:
        """Make a firewall rule."""
        self._compute.check(project)
        body = request.json()
        name = str(body["name"])
        if name in self._rules():
            raise self._compute.exists(f"global/firewalls/{name}")
        self._rules()[name] = self._made_rule(body)
        return self._compute.at_once("insert", f"global/firewalls/{name}")

    def remove_rule(self, request: Request, project: str, name: str) -> Json:
        """Delete a firewall rule."""
        self.rule(request, project, name)
        del self._rules()[name]
        return self._compute.at_once("delete", f"global/firewalls/{name}")

    # ------------------------------------------------------------------------- routers

    def all_routers(self, request: Request, project: str) -> Json:
        """Routers of all regions."""
        del request
        self._compute.check(project)
        items: Json = {}
        for key, router in self._world.routers.items():
            scope = f"regions/{key.partition('/')[0]}"
            items.setdefault(scope, {"routers": []})["routers"].append(router)
        return {"kind": "compute#routerAggregatedList", "items": items}

    def routers(self, request: Request, project: str, region: str) -> Json:
        """Routers of a region."""
        self._compute.check(project)
        items = [
            router for key, router in self._world.routers.items() if key.startswith(f"{region}/")
        ]
        return {"kind": "compute#routerList"} | page(request, items, "items", default=500)

    def router(self, request: Request, project: str, region: str, name: str) -> Json:
        """One router."""
        del request
        self._compute.check(project)
        found = self._world.routers.get(f"{region}/{name}")
        if found is None:
            raise self._compute.not_found(f"regions/{region}/routers/{name}")
        return found

    def add_router(self, request: Request, project: str, region: str) -> Json:
        """Make a router."""
        self._compute.check(project)
        if region not in ZONES:
            raise self._compute.not_found(f"regions/{region}")
        body = request.json()
        name, target = str(body["name"]), f"regions/{region}/routers/{body['name']}"
        if f"{region}/{name}" in self._world.routers:
            raise self._compute.exists(target)
        self._world.routers[f"{region}/{name}"] = body | {
            "kind": "compute#router",
            "id": str(10**18 + self._world.next()),
            "creationTimestamp": now(),
            "region": self._compute.url(f"regions/{region}"),
            "selfLink": self._compute.url(target),
        }
        return self._compute.at_once("insert", target)

    def change_router(self, request: Request, project: str, region: str, name: str) -> Json:
        """Change a router, e.g. give it a NAT."""
        found = self.router(request, project, region, name)
        nats = [str(nat.get("name")) for nat in request.json().get("nats") or []]
        if len(nats) != len(set(nats)):
            raise ApiError(400, "Invalid value for field 'resource.nats': duplicate names.")
        found |= request.json()
        return self._compute.at_once("patch", f"regions/{region}/routers/{name}")

    def remove_router(self, request: Request, project: str, region: str, name: str) -> Json:
        """Delete a router with its NATs."""
        self.router(request, project, region, name)
        del self._world.routers[f"{region}/{name}"]
        return self._compute.at_once("delete", f"regions/{region}/routers/{name}")
