"""A real S3 server (moto) in a process of its own, which ends with this one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.waiting import WAIT_S, until

BUCKET = "lab"
REGION = "us-east-1"
OPEN_REQUESTS = 4
"""What makes the user and the bucket; every later request has to be signed."""
SERVE = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with its parent
from moto.server import main
main(sys.argv[1:])
"""


class S3Server:
    """Listens on one port of the loopback; started again, it is empty."""

    def __init__(self, log: Path, checks_signatures: bool = False) -> None:
        """`checks_signatures`: requests need the credentials of `environment`; else any are good."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log, self._checks = log, checks_signatures
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.key, self.secret = "anybody", "any-secret-will-do"

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the processes that use it: nothing of this machine's own credentials."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }

    def start(self) -> None:
        """With an empty bucket `BUCKET`."""
        command = [sys.executable, "-c", SERVE, "-H", "127.0.0.1", "-p", str(self._port)]
        environment = {**os.environ}
        if self._checks:
            environment["INITIAL_NO_AUTH_ACTION_COUNT"] = str(OPEN_REQUESTS)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        until(self._answers, lambda: self._log.read_text(), WAIT_S)
        if self._checks:
            self._make_user()
        self.client().create_bucket(Bucket=BUCKET)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1.0).close()
        except OSError:
            return False
        return True

    def _make_user(self) -> None:
        iam = self._client("iam")
        iam.create_user(UserName="lab")
        key = iam.create_access_key(UserName="lab")["AccessKey"]
        allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam.put_user_policy(UserName="lab", PolicyName="all", PolicyDocument=json.dumps(allowed))
        self.key, self.secret = key["AccessKeyId"], key["SecretAccessKey"]

    def client(self) -> Any:
        """Of boto3: not the library that zmqrl uses."""
        return self._client("s3")

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=Config(connect_timeout=30, read_timeout=30, retries={"max_attempts": 0}),
        )

    def names(self, prefix: str = "") -> list[str]:
        """Of the objects whose names begin with `prefix`; none while it does not answer."""
        try:
            found = self.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        except (BotoCoreError, ClientError):
            return []
        return [item["Key"] for item in found.get("Contents", [])]

    def get(self, name: str) -> bytes:
        """The content of an object."""
        content: bytes = self.client().get_object(Bucket=BUCKET, Key=name)["Body"].read()
        return content

    @contextmanager
    def stopped(self, seconds: float) -> Iterator[None]:
        """It answers nothing for `seconds`, and longer where the block takes longer."""
        assert self._process is not None
        begun = time.monotonic()
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
            time.sleep(max(0.0, begun + seconds - time.monotonic()))
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """What it held is lost. Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(WAIT_S)
            self._process = None
