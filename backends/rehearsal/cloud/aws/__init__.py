"""AWS's APIs on loopback: accounts, SageMaker and what surrounds it, region by region.

| module | what it is |
|---|---|
| `wire` | AWS's protocols: JSON, query, EC2's query, REST; errors; event-stream frames |
| `front` | who asks, in which region, may they; then the service |
| `account` | the account: everything it has, by region, and its circumstances |
| `catalogue` | instance types, regions, prices, quotas and images |
| `identity` | STS and IAM |
| `sagemaker`, `endpoint_configs` | models, endpoint configurations, endpoints, tags: the requests |
| `endpoints`, `hosting`, `container` | what becomes of an endpoint; its instances; what they run |
| `runtime` | invocations, whole and streamed |
| `logs`, `metrics` | CloudWatch |
| `quotas`, `ecr`, `pricing`, `scaling`, `ec2` | what surrounds it |
| `scenarios`, `troubles` | faults by name, and the circumstances they change |
"""
