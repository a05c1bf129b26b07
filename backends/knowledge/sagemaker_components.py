"""Scale to zero on SageMaker: what is known of inference components, each with source and date.

Shapes are botocore's (1.44.8). Behaviour comes from AWS's guide "Scale an endpoint to zero
instances" (read 2026-12-01), from AWS's sample notebook for it (sagemaker-genai-hosting-examples,
2025-02), and from two public reports of people who did it: Hugging Face's SageMaker skill for
agents (measured in July 2026 on ml.g5.xlarge in us-east-1, with a CUDA 13.0 image of vLLM) and
issue 43 of stdapi-ai/stdapi.ai (2026-08-27). None of it was run on an account by us.

What those say, and what is built on it:

- The execution role stands on the endpoint configuration, and has to (both reports); the variant
  names no model. InferenceAmiVersion stays on the variant (skill).
- `MinInstanceCount: 0` is refused in some regions (eu-west-3: "Min instance count needs to be
  greater than 0 for enabled managed instance scaling"; us-east-1 takes it; issue 43). Which others
  do is not documented.
- A component cannot be made with no copy ("copy count an integer larger than 0", issue 43), nor
  before its endpoint is InService: the first instance is always paid for.
- Going to zero is target tracking's work, coming back is not: it cannot divide by no copies. That
  takes a step policy and an alarm on NoCapacityInvocationFailures (guide). The guide's alarm wants
  more than one failure a minute; here one is enough, as in the skill.
- DeleteEndpoint leaves components behind, which go on holding their names (skill), or is refused
  (other public code): so components always go first, and their end is waited for. Their deletion is
  refused while they are made or scaled ("... while it is in state CREATE_IN_PROGRESS", skill).
- Instance pools are said to work with components (guide "Deploy to multiple instance types with
  instance pools", 2026). Whether quota is held for instances that are not there is not said.
"""

from __future__ import annotations

from backends.knowledge.facts import derived, measured, published

_SKILL = "Hugging Face's SageMaker skill, ml.g5.xlarge in us-east-1, July 2026"

EMPTY_START_S = measured(240.0, f"{_SKILL}: endpoint InService in 4 min; it starts empty")
"""From CreateEndpoint until the endpoint, with an instance and no model, is InService."""

WAKE_ALARM_S = measured(67.0, f"{_SKILL}: first refused request to ALARM")
WAKE_INSTANCE_S = measured(102.0, f"{_SKILL}: ALARM to one instance, 1 min 42 s")
"""How long it takes until the alarm has been heard and an instance is on its way."""

SCALE_IN_S = published(
    900.0, "AWS sample notebook for scale to zero, 2025-02: 90 datapoints of 10 s; 11 min measured"
)
"""Without requests for so long, Application Auto Scaling takes the copies away. Its alarm is AWS's
own and cannot be tuned."""
RELEASE_S = measured(720.0, f"{_SKILL}: no copy to no instance, 12 min")
"""How long an empty instance stays, and is paid for, after its last copy is gone."""
IDLE_S = derived(1620.0, "SCALE_IN_S + RELEASE_S")
"""How long it goes on costing the full price after the last request."""

RESERVED_MEMORY_MB = measured(
    1024.0, f"{_SKILL}: 1024 MB is taken, 4096 MB refused, of 16 GiB; it is no cap"
)
"""`MinMemoryRequiredInMb` of a copy: a reservation, which vLLM may exceed."""

REQUESTS_PER_COPY = measured(
    16.0, "SageMaker L4 repository: 16 requests at once give 619 tok/s, 13.6 times one"
)
"""Automatic scaling keeps about so many requests at once on each copy."""

ALARM_USD_PER_MONTH = published(0.10, "Amazon CloudWatch pricing page, a standard alarm, 2026-11")
"""Of the alarm that wakes it, and of each of the two that Application Auto Scaling keeps."""
