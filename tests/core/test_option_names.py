"""One vocabulary for options: what is said in another target's words is understood, or told."""

from __future__ import annotations

from typing import Any

import pytest

from backends.base import CanDeploy, DeploySpec
from backends.core.errors import InvalidInputError
from backends.registry import backend_class

COMMON: dict[str, Any] = {"name": "g"}


def parsed(target: str, **options: object) -> DeploySpec:
    """A request of that target."""
    kind = backend_class(target)
    assert issubclass(kind, CanDeploy)
    return kind.parse_spec(COMMON, options)


@pytest.mark.parametrize(
    ("target", "said", "own"),
    [
        ("cloudrun-l4", {"places": ["us-east4"]}, {"region": "us-east4"}),
        ("cloudrun-l4", {"places": "us-east4"}, {"region": "us-east4"}),
        ("cloudrun-l4", {"location": "us-east4"}, {"region": "us-east4"}),
        ("cloudrun-l4", {"places": "any"}, {"region": None}),
        (
            "sagemaker-l4",
            {"places": ["us-east-2", "us-west-2"]},
            {"region": "us-east-2", "fallback_regions": ["us-west-2"]},
        ),
        ("sagemaker-l4", {"place": "us-west-2"}, {"region": "us-west-2", "fallback_regions": []}),
        (
            "gce-t4",
            {"places": ["us-west2-b", "us-east1-c"]},
            {"zones": ["us-west2-b", "us-east1-c"]},
        ),
        ("gce-t4", {"zone": "us-west2-b"}, {"zones": ["us-west2-b"]}),
        ("gce-t4", {"region": "us-west2"}, {"zones": ["us-west2-b", "us-west2-c"]}),
        ("gce-t4", {"places": ["any"]}, {"zones": None}),
        ("tpu-v6e", {"places": ["us-east5-b"]}, {"zone": "us-east5-b", "zones": []}),
        ("tpu-v6e", {"region": "us-east5"}, {"zone": None, "zones": ["us-east5-a", "us-east5-b"]}),
        ("tpu-v6e", {"region": "us-south1"}, {"zone": "us-south1-a"}),
    ],
)
def test_places_are_said_in_one_word_on_every_target(
    target: str, said: dict[str, Any], own: dict[str, Any]
) -> None:
    """The target's own fields hold what `places`, or another target's word for it, names."""
    spec = parsed(target, **said)
    assert {name: getattr(spec, name) for name in own} == own


def test_any_place_of_a_tpu_is_every_zone_that_is_known() -> None:
    """`any` is understood as it was with `zones`."""
    assert parsed("tpu-v6e", places="any") == parsed("tpu-v6e", zones=["any"])


@pytest.mark.parametrize(
    ("target", "said", "told"),
    [
        ("cloudrun-l4", {"places": ["us-east4", "us-central1"]}, "one of them"),
        ("cloudrun-l4", {"zone": "us-east4-a"}, "us-east4-a is a zone"),
        ("cloudrun-l4", {"region": "us-east4", "places": "us-east4"}, "leave one out"),
        ("cloudrun-l4", {"places": []}, "a place or a list of places"),
        ("cloudrun-l4", {"places": {"a": 1}}, "a place or a list of places"),
        ("sagemaker-l4", {"places": ["us-east4-a"]}, "is a zone"),
        ("gce-t4", {"region": "mars-central1"}, "no zone of mars-central1"),
        ("gce-t4", {"zones": ["us-west2-b"], "places": "us-west2-b"}, "leave one out"),
        ("gce-t4", {"places": "nowhere"}, "takes zones"),
        ("tpu-v6e", {"places": "us-east-5"}, "is not a zone"),
        ("local", {"zone": "us-east5-b"}, "one place only"),
        ("tpu-v6e", {"subnet": "a", "subnetwork": "b"}, "leave one out"),
        ("tpu-v6e", {"regoin": "us-east5"}, "no such option"),
        ("tpu-v6e", {"reservaton": "r"}, "Is reservation meant?"),
        ("cloudrun-l4", {"colour": "green"}, "places"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(
    target: str, said: dict[str, Any], told: str
) -> None:
    """The refusal names the option as it was said and what to say instead."""
    with pytest.raises(InvalidInputError) as refused:
        parsed(target, **said)
    assert told in str(refused.value)
    # Arguments of plan_deployment are no options.
    assert "max_num_seqs" not in str(refused.value)


@pytest.mark.parametrize(
    ("target", "said", "own", "value"),
    [
        ("gce-t4", {"language_model_only": False}, "text_only", False),
        ("tpu-v6e", {"language_model_only": True}, "text_only", True),
        ("tpu-v6e", {"subnetwork": "s1"}, "subnet", "s1"),
        ("tpu-v6e", {"disk_gb": 200}, "boot_disk_gib", 200),
        ("gce-t4", {"disk_gb": 50}, "boot_disk_gib", 50),
        ("tpu-v6e", {"external": False}, "internal_ips", True),
        ("gce-t4", {"internal_ips": False}, "external", True),
        ("cloudrun-l4", {"instances": 2}, "scaling", 2),
        ("sagemaker-l4", {"machine_type": ["ml.g6.xlarge"]}, "instance_types", ["ml.g6.xlarge"]),
        ("cloudrun-l4", {"role": "a@b.iam.gserviceaccount.com"}, "service_account", None),
    ],
)
def test_another_targets_name_of_the_same_thing_is_understood(
    target: str, said: dict[str, Any], own: str, value: object
) -> None:
    """Names that a target had, or that others have, lead to its own."""
    expected = next(iter(said.values())) if value is None else value
    assert getattr(parsed(target, **said), own) == expected
