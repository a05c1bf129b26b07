"""One vocabulary for the options of every target's deployment.

Clouds have their own words for the same thing: Cloud Run a region, Compute Engine zones, SageMaker
a region and others to fall back on. An agent that moves from one target to the next says `places`
on all of them; the words of one target are understood on the others, as far as they mean the same.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from backends.core.errors import InvalidInputError

PLACES = "places"
PLACES_MEANING = (
    "Where, in the order to try, as find_capacity names them; the same word on every target. "
    "Here it stands for {own}."
)

# Words for where a deployment goes, in the order in which they are read.
_PLACE_WORDS = (
    PLACES,
    "place",
    "region",
    "regions",
    "fallback_regions",
    "zone",
    "zones",
    "location",
    "locations",
)

# Names of one thing on different targets, and those it had before.
_SAME: tuple[frozenset[str], ...] = (
    frozenset({"subnet", "subnetwork"}),
    frozenset({"text_only", "language_model_only"}),
    frozenset({"boot_disk_gib", "boot_disk_gb", "disk_gb"}),
    frozenset({"instances", "scaling"}),
    frozenset({"instance_type", "instance_types", "machine_type"}),
    frozenset({"service_account", "role"}),
)

# Two switches of which one is the other's opposite.
_OPPOSITE: Mapping[str, str] = {"external": "internal_ips", "internal_ips": "external"}

# Any place will do.
ANY = "any"

# Google's names: a zone is its region and a letter.
_REGION = re.compile(r"^[a-z]+-[a-z]+[0-9]+$")
_ZONE = re.compile(r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")

Placed = Callable[[list[str]], dict[str, Any]]


def in_own_words(
    options: Mapping[str, Any], known: Collection[str], placed: Placed
) -> dict[str, Any]:
    """The options of a request by the names that the target itself has for them.

    Args:
        options: As said.
        known: The target's own options.
        placed: Makes of `places` the target's own options.

    Raises:
        InvalidInputError: The same thing is said twice, or the target has no such places.
    """
    own: dict[str, Any] = {}
    for word, value in options.items():
        name = word if word in known else _own_name(word, known)
        if name in own or (name != word and name in options):
            raise InvalidInputError(f"options.{word}", f"says the same as {name}; leave one out.")
        own[name] = (not value) if _OPPOSITE.get(word) == name and value in (True, False) else value
    foreign = [word for word in _PLACE_WORDS if word in own and word not in known]
    if not foreign:
        return own
    # One target's `fallback_regions` are what the others try after their region.
    first = ["region"] if foreign == ["fallback_regions"] and "region" in own else []
    mixed = [word for word in _PLACE_WORDS if word in own and word not in (*foreign, *first)]
    if mixed:
        raise InvalidInputError(
            f"options.{foreign[0]}", f"says the same as {mixed[0]}; leave one out."
        )
    said = [(word, own.pop(word)) for word in (*first, *foreign)]
    places = [place for word, value in said for place in _places(word, value)]
    return own | placed(list(dict.fromkeys(places)))


def regions_only(target: str, places: list[str]) -> list[str]:
    """The places, for a target that goes to regions; none where any is good.

    Raises:
        InvalidInputError: One is a zone.
    """
    for place in places:
        if _ZONE.match(place):
            raise InvalidInputError(
                f"options.{PLACES}",
                f"{place} is a zone, and {target} goes to regions.",
                allowed=place.rpartition("-")[0],
            )
    return [] if places == [ANY] else places


def zones_only(target: str, places: list[str], known: Sequence[str]) -> list[str]:
    """The places, for a target that goes to zones: a region stands for those of its zones we know.

    Raises:
        InvalidInputError: A region of which no zone is known.
    """
    zones: list[str] = []
    for place in places:
        inside = [zone for zone in known if zone.rpartition("-")[0] == place]
        if not inside and _REGION.match(place):
            raise InvalidInputError(
                f"options.{PLACES}",
                f"no zone of {place} is known to have what {target} needs.",
                allowed=", ".join(dict.fromkeys(zone.rpartition("-")[0] for zone in known)),
            )
        zones += inside or [place]
    return list(dict.fromkeys(zones))


def _places(word: str, value: object) -> list[str]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(i, str) for i in items):
        raise InvalidInputError(f"options.{word}", "takes a place or a list of places.")
    return items


def _own_name(word: str, known: Collection[str]) -> str:
    """The target's own name of what another target calls `word`; `word` where there is none."""
    if _OPPOSITE.get(word) in known:
        return _OPPOSITE[word]
    for names in _SAME:
        if word in names:
            return next((name for name in sorted(names) if name in known), word)
    return word


def unknown_option(target: str, word: str, allowed: Collection[str]) -> InvalidInputError:
    """The refusal of an option that the target lacks: names the one that was meant, if any."""
    near = difflib.get_close_matches(word, allowed, n=1, cutoff=0.7)
    meant = f" Is {near[0]} meant?" if near else ""
    return InvalidInputError(
        f"options.{word[:40]}",
        f"{target} has no such option.{meant}",
        allowed=", ".join(sorted(allowed)),
    )
