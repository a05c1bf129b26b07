"""Cloud Storage: uploads in pieces, cut and taken up again, ranges, pre-conditions, lists."""

from __future__ import annotations

import base64
import hashlib

from tests.cloud.rehearsal import BUCKET, Rehearsal

API = f"https://storage.googleapis.com/storage/v1/b/{BUCKET}/o"
UPLOAD = f"https://storage.googleapis.com/upload/storage/v1/b/{BUCKET}/o"
CREATE = "https://storage.googleapis.com/storage/v1/b"


def test_a_resumable_upload_is_taken_up_where_it_was_cut(cloud: Rehearsal) -> None:
    data = bytes(range(256)) * 3000
    began = cloud.rest.post(
        UPLOAD,
        params={"uploadType": "resumable"},
        json={"name": "model.bin", "metadata": {"a": "b"}},
    )
    url = began.headers["location"]
    half = 256 * 1024
    first = cloud.rest.put(
        url,
        content=data[:half],
        headers={"content-range": f"bytes 0-{half - 1}/{len(data)}"},
    )
    assert first.status_code == 308
    assert first.headers["range"] == f"bytes=0-{half - 1}"
    # The same piece again, as after a cut: it says what it has, and does not take it twice.
    again = cloud.rest.put(
        url,
        content=data[: half // 2],
        headers={"content-range": f"bytes 0-{half // 2 - 1}/{len(data)}"},
    )
    assert again.headers["range"] == f"bytes=0-{half - 1}"
    asked = cloud.rest.put(url, headers={"content-range": f"bytes */{len(data)}"})
    assert asked.status_code == 308
    last = cloud.rest.put(
        url,
        content=data[half:],
        headers={"content-range": f"bytes {half}-{len(data) - 1}/{len(data)}"},
    )
    made = last.json()
    assert made["size"] == str(len(data))
    assert made["metadata"] == {"a": "b"}
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    assert made["md5Hash"] == base64.b64encode(digest).decode()
    assert cloud.rest.put(url, content=b"x").status_code == 404
    assert cloud.rest.get(f"{API}/model.bin", params={"alt": "media"}).content == data


def test_ranges_are_served_as_asked(cloud: Rehearsal) -> None:
    cloud.rest.post(UPLOAD, params={"uploadType": "media", "name": "abc"}, content=b"0123456789")
    for wanted, status, content, said in (
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
    ):
        answer = cloud.rest.get(f"{API}/abc", params={"alt": "media"}, headers={"range": wanted})
        assert answer.status_code == status
        assert answer.content == content
        assert answer.headers["content-range"] == said


def test_a_multipart_upload_keeps_its_bytes_whatever_they_are(cloud: Rehearsal) -> None:
    # gcloud parts with bare LF and quotes its boundary; content may end in a line end.
    for content in (b"", b"\n", b"a\r\n--other\r\nb\n\n", bytes(range(256))):
        body = (
            b'--===B==\nContent-Type: application/json\n\n{"name": "odd/name \\u00fc"}\n'
            b"--===B==\nContent-Type: application/octet-stream\n\n" + content + b"\n--===B==--\n"
        )
        answer = cloud.rest.post(
            UPLOAD,
            params={"uploadType": "multipart"},
            content=body,
            headers={"content-type": "multipart/related; boundary='===B=='"},
        )
        assert answer.json()["size"] == str(len(content))
        back = cloud.rest.get(f"{API}/odd%2Fname%20%C3%BC", params={"alt": "media"})
        assert back.content == content
    broken = cloud.rest.post(
        UPLOAD,
        params={"uploadType": "multipart"},
        content=b"nothing",
        headers={"content-type": "multipart/related; boundary=B"},
    )
    assert broken.status_code == 400


def test_pre_conditions_hold(cloud: Rehearsal) -> None:
    params = {"uploadType": "media", "name": "once", "ifGenerationMatch": "0"}
    first = cloud.rest.post(UPLOAD, params=params, content=b"1")
    assert first.status_code == 200
    second = cloud.rest.post(UPLOAD, params=params, content=b"2")
    assert second.status_code == 412
    assert second.json()["error"]["errors"][0]["reason"] == "conditionNotMet"
    right = params | {"ifGenerationMatch": first.json()["generation"]}
    assert cloud.rest.post(UPLOAD, params=right, content=b"3").status_code == 200


def test_lists_fold_folders_and_come_in_pages(cloud: Rehearsal) -> None:
    for name in ("m/a", "m/b", "m/sub/c", "n/d", "top"):
        cloud.rest.post(UPLOAD, params={"uploadType": "media", "name": name}, content=b"x")
    top = cloud.rest.get(API, params={"delimiter": "/"}).json()
    assert top["prefixes"] == ["gemma-4-E2B-it/", "m/", "n/"]
    assert [item["name"] for item in top["items"]] == ["top"]
    folder = cloud.rest.get(API, params={"prefix": "m/", "delimiter": "/"}).json()
    assert folder["prefixes"] == ["m/sub/"]
    seen: list[str] = []
    token = ""
    for _ in range(2):
        answer = cloud.rest.get(
            API, params={"prefix": "m/", "maxResults": 2, "pageToken": token}
        ).json()
        seen += [item["name"] for item in answer["items"]]
        token = answer.get("nextPageToken", "")
    assert seen == ["m/a", "m/b", "m/sub/c"]
    assert not token
    found = cloud.rest.get(API, params={"matchGlob": "**/c"}).json()["items"]
    assert [item["name"] for item in found] == ["m/sub/c"]


def test_objects_are_copied_joined_and_deleted(cloud: Rehearsal) -> None:
    for name in ("p1", "p2"):
        cloud.rest.post(UPLOAD, params={"uploadType": "media", "name": name}, content=name.encode())
    joined = cloud.rest.post(
        f"{API}/whole/compose", json={"sourceObjects": [{"name": "p1"}, {"name": "p2"}]}
    ).json()
    assert joined["componentCount"] == 2
    assert "md5Hash" not in joined
    moved = cloud.rest.post(f"{API}/whole/rewriteTo/b/{BUCKET}/o/copy", json={}).json()
    assert moved["done"] is True
    assert cloud.rest.get(f"{API}/copy", params={"alt": "media"}).content == b"p1p2"
    assert cloud.rest.delete(f"{API}/whole").status_code == 204
    assert cloud.rest.delete(f"{API}/whole").status_code == 404
    weights = "gemma-4-E2B-it%2Fmodel.safetensors"
    copied = cloud.rest.post(f"{API}/{weights}/rewriteTo/b/{BUCKET}/o/again", json={}).json()
    assert int(copied["objectSize"]) > 10**10


def test_buckets_have_one_owner_and_must_be_empty_to_go(cloud: Rehearsal) -> None:
    params = {"project": "vllm-rehearsal"}
    made = cloud.rest.post(
        CREATE, params=params, json={"name": "fresh-one", "location": "us-east4"}
    )
    assert made.json()["location"] == "US-EAST4"
    again = cloud.rest.post(CREATE, params=params, json={"name": "fresh-one"})
    assert again.status_code == 409
    assert "you already own it" in again.json()["error"]["message"]
    assert cloud.rest.post(CREATE, params=params, json={"name": "Bad"}).status_code == 400
    names = [item["name"] for item in cloud.rest.get(CREATE, params=params).json()["items"]]
    assert names == ["fresh-one", BUCKET]
    assert cloud.rest.delete(f"{CREATE}/{BUCKET}").status_code == 409
    labelled = cloud.rest.patch(f"{CREATE}/fresh-one", json={"labels": {"managed-by": "x"}})
    assert labelled.json()["labels"] == {"managed-by": "x"}
    assert cloud.rest.delete(f"{CREATE}/fresh-one").status_code == 204
    assert cloud.rest.get(f"{CREATE}/fresh-one").status_code == 404
