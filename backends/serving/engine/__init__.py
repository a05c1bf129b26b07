"""The load engine: worker processes that read sockets and believe the kernel's clock.

`epoll_engine.EpollEngine` is the door. It fits the `LoadEngine` contract of
`backends.serving.loadgen`; what the figures mean is decided in `backends.serving.levels`.

- `target`      whom to ask, and every byte of a request that is known beforehand
- `clock`       kernel receive times on the monotonic clock, and whether it can be trusted
- `link`        one connection: connect, proxy, TLS, bytes
- `answer`      one response: reads in, times of content events out
- `eventstream` the frames SageMaker wraps around the events
- `signing`     the signature SageMaker wants on every request
- `schedule`    when an open loop sends
- `worker`      the process: one thread, one epoll, streams kept busy, parsing deferred
- `messages`    what coordinator and worker say to each other
- `turns`       conversations whose later turns hold the model's own answers
- `crew`        the coordinator's side of the workers: start, talk, watch, end
- `member`      one worker as the coordinator sees it, on this machine's clock or another's
- `ray_crew`    workers on the nodes of a Ray cluster; `ray_node` is what stands there
- `epoll_engine` a level from start to end, the workers' findings put together
"""
