"""Cloud Logging's query language, on entries as Cloud Run writes them."""

from __future__ import annotations

from typing import Any

import pytest

from backends.rehearsal.cloud.log_filter import compile_filter
from backends.rehearsal.cloud.web import ApiError
from tests.cloud.rehearsal import Rehearsal

ENTRY: dict[str, Any] = {
    "logName": "projects/p/logs/run.googleapis.com%2Fstdout",
    "timestamp": "2026-11-30T18:26:02.500000Z",
    "severity": "WARNING",
    "textPayload": 'Loading "weights" took 82.75 seconds',
    "labels": {"instanceId": "00ab", "k8s-pod/app": "x"},
    "resource": {
        "type": "cloud_run_revision",
        "labels": {"service_name": "vllm-l4", "location": "us-east4"},
    },
    "httpRequest": {"status": 503},
    "jsonPayload": {"phase": "ready", "steps": [{"name": "a"}, {"name": "b"}]},
}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ('resource.type="cloud_run_revision"', True),
        ("resource.type=cloud_run_revision", True),
        ('resource.type = "cloud_run_job"', False),
        ('resource.labels.service_name="VLLM-L4"', True),
        ('resource.labels.service_name:"l4"', True),
        ('resource.labels.service_name!="vllm-l4"', False),
        ('resource.labels.missing!="x"', True),
        ('resource.labels.missing="x"', False),
        ("severity>=WARNING", True),
        ("severity>WARNING", False),
        ("severity=warning", True),
        ('severity=("ERROR" OR "WARNING")', True),
        ('timestamp>="2026-11-30T18:26:02Z"', True),
        ('timestamp<"2026-11-30T18:26:02Z"', False),
        ("timestamp>2026-11-30T18:26:02.4Z AND timestamp<2026-11-30T18:26:02.6Z", True),
        ('timestamp>="2026-11-30T19:26:02+01:00"', True),
        ('textPayload:"weights"', True),
        (r'textPayload:"\"weights\""', True),
        ('textPayload=~"took [0-9.]+ seconds$"', True),
        ('textPayload!~"took"', False),
        ("httpRequest.status>=500", True),
        ("httpRequest.status=503", True),
        ("httpRequest.status<500", False),
        ('jsonPayload.phase="ready"', True),
        ('jsonPayload.steps.name="a"', True),
        ("jsonPayload:*", True),
        ("protoPayload:*", False),
        ('labels."k8s-pod/app"="x"', True),
        ("labels.instanceId=00ab", True),
        ('log_id("run.googleapis.com/stdout")', True),
        ('logName=~"run.googleapis.com%2Fstd(out|err)$"', True),
        ('"WEIGHTS" took', True),
        ('"not there"', False),
        ("-severity=ERROR", True),
        ("NOT severity=WARNING", False),
        ("severity=ERROR OR httpRequest.status=503 AND textPayload:weights", True),
        ("severity=ERROR OR httpRequest.status=503 AND textPayload:nothing", False),
        ("(severity=ERROR OR severity=WARNING)\nresource.type=cloud_run_revision", True),
        ("-- a comment\nseverity=WARNING", True),
        ('SEARCH(textPayload, "weights")', True),
    ],
)
def test_a_filter_matches_what_it_says(text: str, matches: bool) -> None:
    assert compile_filter(text)(ENTRY) is matches


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a==", "syntax error at line 1, column 3, token '='"),
        ("(severity=ERROR", "token 'EOF'"),
        ("severity=ERROR)", "column 15, token ')'"),
        ("resource.type=", "token 'EOF'"),
        ("severity=LOUD", "invalid value for enum severity"),
        ('timestamp>="-PT60M"', "must be in RFC 3339 format"),
        ("timestamp:2026", "RFC 3339"),
        ('textPayload=~"("', "invalid regular expression"),
        ('severity=("ERROR" "INFO")', "syntax error"),
        ("OR", "syntax error"),
    ],
)
def test_a_wrong_filter_is_refused_where_it_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        compile_filter(text)
    assert caught.value.code == 400
    assert caught.value.message.startswith("Unparseable filter: ")
    assert words in caught.value.message


def test_entries_come_in_order_and_in_pages_that_do_not_move(cloud: Rehearsal) -> None:
    def write(first: int, last: int) -> None:
        entries = [
            {
                "textPayload": f"line {number}",
                "timestamp": f"2026-11-30T10:00:{number:02d}Z",
                "severity": "ERROR" if number % 2 else "INFO",
            }
            for number in range(first, last)
        ]
        cloud.control("POST", "/logs", {"entries": entries})

    def read(**more: Any) -> dict[str, Any]:
        body = {"resourceNames": ["projects/vllm-rehearsal"], "filter": "textPayload:line"} | more
        answer = cloud.rest.post("https://logging.googleapis.com/v2/entries:list", json=body)
        assert answer.status_code == 200
        return dict(answer.json())

    write(0, 6)
    page = read(pageSize=4, orderBy="timestamp desc")
    write(6, 9)
    rest = read(pageSize=4, orderBy="timestamp desc", pageToken=page["nextPageToken"])
    texts = [item["textPayload"] for item in [*page["entries"], *rest["entries"]]]
    assert texts == [f"line {number}" for number in range(5, -1, -1)]
    assert "nextPageToken" not in rest
    assert [item["textPayload"] for item in read(filter="severity=ERROR")["entries"]] == [
        f"line {number}" for number in (1, 3, 5, 7)
    ]
    assert read(filter="textPayload:none") == {}
    wrong = cloud.rest.post("https://logging.googleapis.com/v2/entries:list", json={})
    assert wrong.status_code == 400
