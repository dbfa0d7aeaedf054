"""OpenAI's official client with files and batches, and jobs beside them."""

import json
import time

import httpx
import openai
import pytest

ENDPOINT = "/v1/chat/completions"


def line(number, model="echo"):
    body = {"model": model, "messages": [{"role": "user", "content": f"number {number}"}]}
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}) + "\n"


def upload(client, text, name="in.jsonl"):
    return client.files.create(file=(name, text.encode()), purpose="batch")


def ended(client, batch):
    deadline = time.monotonic() + 60
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def test_rc_26_files_are_uploaded_listed_read_and_deleted(fake):
    text = line(1) + line(2)
    first, second = upload(fake, text), upload(fake, text, "other.jsonl")
    assert (first.object, first.bytes, first.filename, first.purpose) == ("file", len(text), "in.jsonl", "batch")
    assert fake.files.content(first.id).text == text
    assert fake.files.retrieve(second.id).filename == "other.jsonl"
    listed = [file.id for file in fake.files.list(limit=1)]
    assert listed.index(second.id) < listed.index(first.id), "pages follow each other, the newest first"
    assert first.id in [file.id for file in fake.files.list(purpose="batch", order="asc")]
    assert fake.files.delete(second.id).deleted
    with pytest.raises(openai.NotFoundError) as caught:
        fake.files.content(second.id)
    assert caught.value.code == "file_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        fake.files.create(file=("a", b"x"), purpose="nonsense")
    assert caught.value.param == "purpose"
    large = "x" * 3_000_000
    assert fake.files.content(upload(fake, large).id).text == large


def test_rc_26_a_batch_is_answered_line_by_line(fake):
    file = upload(fake, "".join(line(number) for number in range(20)) + line(20, "nobody"))
    batch = fake.batches.create(
        input_file_id=file.id,
        endpoint=ENDPOINT,
        completion_window="24h",
        metadata={"night": "shift"},
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    assert batch.object == "batch" and batch.metadata == {"night": "shift"}
    batch = ended(fake, batch)
    assert batch.status == "completed", batch
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (21, 20, 1)
    assert batch.model is None and batch.usage.output_tokens > 0
    output = fake.files.retrieve(batch.output_file_id)
    assert output.expires_at - output.created_at == 7200
    answers = [json.loads(text) for text in fake.files.content(batch.output_file_id).text.splitlines()]
    assert {answer["custom_id"] for answer in answers} == {f"line-{number}" for number in range(20)}
    for answer in answers:
        assert answer["error"] is None and answer["response"]["status_code"] == 200
        number = answer["custom_id"].removeprefix("line-")
        assert f"number {number}" in answer["response"]["body"]["choices"][0]["message"]["content"]
    [wrong] = [json.loads(text) for text in fake.files.content(batch.error_file_id).text.splitlines()]
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("line-20", 404)
    assert batch.id in [one.id for one in fake.batches.list(limit=1)]


def test_rc_26_faults_of_a_batch_name_their_lines(fake):
    batch = fake.batches.create(
        input_file_id=upload(fake, line(1) + "{\n").id, endpoint=ENDPOINT, completion_window="24h"
    )
    batch = ended(fake, batch)
    assert batch.status == "failed" and [error.line for error in batch.errors.data] == [2]
    with pytest.raises(openai.BadRequestError) as caught:
        fake.batches.create(input_file_id=upload(fake, line(1)).id, endpoint="/v1/nothing", completion_window="24h")
    assert caught.value.param == "endpoint"
    with pytest.raises(openai.NotFoundError) as caught:
        fake.batches.create(input_file_id="file-nothing", endpoint=ENDPOINT, completion_window="24h")
    assert caught.value.code == "file_not_found"
    with pytest.raises(openai.ConflictError):
        fake.batches.cancel(batch.id)
    for expiry, param in [
        ({"anchor": "created_at", "seconds": 5}, "output_expires_after.seconds"),
        ({"anchor": "noon", "seconds": 7200}, "output_expires_after.anchor"),
        ({"anchor": "created_at", "seconds": "long"}, "output_expires_after.seconds"),
        (7200, "output_expires_after"),
    ]:
        with pytest.raises(openai.BadRequestError) as caught:
            fake.batches.create(
                input_file_id=upload(fake, line(1)).id,
                endpoint=ENDPOINT,
                completion_window="24h",
                output_expires_after=expiry,
            )
        assert caught.value.param == param


def test_rc_26_a_job_of_any_route_is_submitted_and_collected(fake):
    jobs = str(fake.base_url).removesuffix("/v1/") + "/api/v1/jobs"
    body = {"model": "echo", "messages": [{"role": "user", "content": "later"}]}
    order = {"kind": "chat", "body": body, "priority": "batch"}
    accepted = httpx.post(jobs, json=order, headers={"Idempotency-Key": "once"})
    assert accepted.status_code == 202
    again = httpx.post(jobs, json=order, headers={"Idempotency-Key": "once"})
    assert again.json()["id"] == accepted.json()["id"]
    place = f"{jobs}/{accepted.json()['id']}"
    job = httpx.get(place, params={"wait": "30s"}, timeout=40).json()
    assert job["state"] == "succeeded", job
    answer = httpx.get(f"{place}/result")
    assert "later" in answer.json()["choices"][0]["message"]["content"]
    part = httpx.get(f"{place}/result", headers={"Range": "bytes=2-5"})
    assert (part.status_code, part.content) == (206, answer.content[2:6])
    assert httpx.delete(place).status_code == 200 and httpx.get(place).status_code == 404
