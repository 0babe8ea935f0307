"""Objects below a URL: what is sent and fetched, and what becomes of the errors of a service."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.raising import compare, raises
from tests.support.s3_server import BUCKET, S3Server
from zmqrl.data_stores.object import ObjectConfig, ObjectStore
from zmqrl.data_stores.objects import PIECE_BYTES, Objects, check_url, check_writable
from zmqrl.errors import ConfigError, StoreError, StoreRefused
from zmqrl.run_files.url_mirror import fetch

pytestmark = pytest.mark.usefixtures("s3")
WRONG = "wrong-secret-of-this-test"


@pytest.fixture
def objects(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return Objects(f"s3://{BUCKET}/{tmp_path.name}")


@pytest.mark.whole
def test_names_are_those_directly_below_the_url(objects: Objects) -> None:
    objects.put("a", b"1")
    objects.put("b", b"2")
    Objects(f"{objects.url}/deeper").put("c", b"3")
    assert sorted(objects.names()) == ["a", "b"]
    assert Objects(f"{objects.url}/deeper").names() == ["c"]
    assert Objects(f"{objects.url}/nothing").names() == []


def test_an_object_is_replaced_moved_and_deleted(objects: Objects) -> None:
    objects.put("a", b"1")
    objects.put("a", b"22")
    assert objects.get("a") == b"22"
    objects.move("a", "aside/a")
    objects.move("a", "aside/a")
    assert (objects.get("a"), Objects(f"{objects.url}/aside").get("a")) == (None, b"22")
    objects.delete(["aside/a", "aside/a"])
    assert Objects(f"{objects.url}/aside").get("a") is None


@pytest.mark.parametrize("nbytes", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES])
@pytest.mark.whole
def test_an_object_of_any_size_comes_back_in_pieces(objects: Objects, tmp_path: Path, nbytes: int) -> None:
    content = bytes(range(251)) * (nbytes // 251 + 1)
    path = tmp_path / "content"
    path.write_bytes(content[:nbytes])
    objects.put("from memory", content[:nbytes])
    objects.put("from a file", path)
    for name in ("from memory", "from a file"):
        pieces = [*objects.pieces(name)]
        assert b"".join(pieces) == content[:nbytes]
        assert max(map(len, pieces)) <= PIECE_BYTES


@pytest.mark.parametrize(("changes", "named"), [
    ({"AWS_SECRET_ACCESS_KEY": WRONG}, "SignatureDoesNotMatch"),
    ({"AWS_ACCESS_KEY_ID": "AKIAWRONG"}, "InvalidAccessKeyId"),
    ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "this host has no credentials"),
    ({"AWS_PROFILE": "nobody"}, "nobody"),
])  # fmt: skip
def test_wrong_credentials_are_refused_with_the_text_of_the_service(
    objects: Objects, s3: S3Server, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], named: str
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    for call in (lambda: objects.put("a", b"1"), lambda: objects.get("a"), objects.names, lambda: objects.delete("a")):
        with raises(StoreRefused, place=objects.url, fix=CREDENTIALS) as refused:
            call()
        assert named in refused.value.cause
        told = "".join(traceback.format_exception(refused.value))
        assert "credentials" in told
        for secret in (s3.secret, s3.key, WRONG, "AKIAWRONG"):
            assert secret not in told
    with raises(ConfigError, key=("store", "mirror")) as wrong:
        check_writable("store.mirror", objects.url, "check")
    compare(wrong.value.__cause__, name="check", what="cannot be written", fix=CREDENTIALS)


def test_a_missing_bucket_is_refused(objects: Objects) -> None:
    del objects
    missing = Objects("s3://no-such-bucket/runs")
    for call in (lambda: missing.put("a", b"1"), lambda: missing.get("a"), missing.names):
        fix = "create the bucket, or correct the URL or AWS_ENDPOINT_URL"
        with raises(StoreRefused, cause="NoSuchBucket: The specified bucket does not exist", fix=fix):
            call()


def test_a_bucket_that_may_only_be_read_is_refused(objects: Objects, s3: S3Server) -> None:
    client = s3.client()
    client.create_bucket(Bucket="read-only")
    denied = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::read-only/*"}
    client.put_bucket_policy(Bucket="read-only", Policy=json.dumps({"Version": "2012-10-17", "Statement": [denied]}))
    del objects
    with raises(ConfigError, key=("store", "url")) as refused:
        check_writable("store.url", "s3://read-only/runs", "check")
    cause = refused.value.__cause__
    compare(cause, name="check", what="cannot be written", place="s3://read-only/runs", fix=CREDENTIALS)
    assert isinstance(cause, StoreRefused) and "403 Forbidden" in cause.cause


CREDENTIALS = "check this host's credentials (environment, ~/.aws, instance role), their permissions and the region"
REPLIES = {
    "RequestTimeTooSkewed": (403, "The difference between the request time and the current time is too large."),
    "AuthorizationHeaderMalformed": (400, "expecting another one"),
    "PermanentRedirect": (301, "use another endpoint"),
    "RequestTimeout": (400, "the socket was not read from"),
}
"""Of S3 to objects of these names; moto has no such checks."""


class _Service(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        code = self.path.rpartition("/")[2]
        status, text = REPLIES[code]
        content = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.keeps_sockets
def test_a_clock_or_a_region_that_is_wrong_is_named(
    objects: Objects, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", service)
    with raises(ConfigError, key=("store", "mirror")) as wrong:
        check_writable("store.mirror", objects.url, "RequestTimeTooSkewed")
    cause = f"RequestTimeTooSkewed: {REPLIES['RequestTimeTooSkewed'][1]}"
    compare(wrong.value.__cause__, cause=cause, fix="set the clock of this host, for example with chrony")
    for name in ("AuthorizationHeaderMalformed", "PermanentRedirect"):
        with raises(StoreRefused, fix="set AWS_REGION to the region of the bucket"):
            objects.put(name, b"1")
    with raises(StoreError, cause="RequestTimeout: the socket was not read from", fix="") as away:
        objects.put("RequestTimeout", b"1")
    assert not isinstance(away.value, StoreRefused)


@pytest.mark.parametrize(("endpoint", "named"), [
    ("http://127.0.0.1:9", "Connection refused"),
    ("http://no-such-host.invalid:9", "failed to lookup address"),
])  # fmt: skip
def test_a_service_that_is_away_is_an_outage(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, endpoint: str, named: str
) -> None:
    """Whatever the words in the URL."""
    objects = Objects(f"{objects.url}/region")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("NO_PROXY", "*")
    with raises(StoreError, name="a", what="cannot be written", fix="") as away:
        objects.put("a", b"1")
    assert not isinstance(away.value, StoreRefused) and named in away.value.cause


@pytest.mark.parametrize(("url", "named"), [
    ("bucket/runs", "write a URL"),
    ("ftp://bucket/runs", "write a URL"),
    ("s3://", "write a URL"),
    ("file://", "write a URL"),
    ("s3://key:secret@bucket/runs", "credentials"),
    ("s3://bucket/runs?X-Amz-Signature=secret", "credentials"),
])  # fmt: skip
def test_a_url_of_another_form_is_refused_without_its_secrets(url: str, named: str) -> None:
    with raises(ConfigError, key=("store", "url")) as refused:
        check_url("store.url", url)
    assert named in refused.value.what
    assert "secret" not in str(refused.value)
    for refuses in (
        lambda: fetch(url, Path("nowhere"), to_resume=True),
        lambda: ObjectStore.check_mode(ObjectConfig(url), "sync"),
    ):
        with pytest.raises(ConfigError) as refused:
            refuses()
        assert named in refused.value.what
        assert "secret" not in str(refused.value)


def test_an_azure_url_has_its_container_in_place_of_the_user() -> None:
    check_url("store.url", "abfss://container@account.dfs.core.windows.net/runs")
    with raises(ConfigError, key=("store", "url"), value="'abfss://account.dfs.core.windows.net/runs'"):
        check_url("store.url", "abfss://container:secret@account.dfs.core.windows.net/runs")
