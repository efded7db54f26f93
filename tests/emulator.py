"""A Cloud Storage to test against: gcp-storage-emulator behind a proxy that injects faults.

The proxy also does what the service does and the emulator does not: answers over kept-open
connections in many threads, checks generations, cuts listings into pages, refuses ranges past the
end, tells checksums along with ranges. Both run in this process, on loopback, on free ports.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from gcp_storage_emulator.server import create_server

with warnings.catch_warnings():  # of an optional part of a dependency, which Python hides
    warnings.simplefilter("ignore", ImportWarning)
    import google.api_core.exceptions  # noqa: F401


@dataclass
class Fault:
    """What happens to the first `times` requests whose "METHOD /path?query" matches.

    Attributes:
        match: Regular expression, searched for in the unquoted request line.
        times: How many requests are hit.
        status: Answer this status instead of passing the request on.
        cut: Cut the connection "before" the request is passed on, "after" it (the answer is
            lost), or in the "middle" of the answer's body.
        delay: Seconds before the answer; a stopping server does not wait for them.
        act: Called once the request was passed on, before its answer is sent: to take away an
            object that was just listed, or to put one where there was none.
        flip: Flip a bit in the middle of the "request" or of the "answer".
        seen: Requests hit so far.
    """

    match: str
    times: int = 1
    status: int | None = None
    cut: Literal["before", "after", "middle"] | None = None
    delay: float = 0.0
    act: Callable[[], object] | None = None
    flip: Literal["request", "answer"] | None = None
    seen: int = 0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str] = {}  # noqa: RUF012
    body: bytes = b""


@dataclass
class Emulator:
    """A running emulator and its proxy."""

    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    page_size: int = 1000
    connections: int = 0

    def __post_init__(self) -> None:
        self._backend = create_server("127.0.0.1", 0, in_memory=True)
        # After each upload the emulator writes its whole state as JSON, though only to memory:
        # 2,000 uploads would take minutes.
        self._backend._storage._write_config_to_file = lambda: None
        self._backend.start()
        self._port = self._backend._api._httpd.server_address[1]
        self._one_at_a_time = threading.Lock()  # the emulator has a queue of 5 and no locks
        self._sessions: dict[str, tuple[str, str]] = {}  # upload id -> (object URL, generation)
        self.stopped = threading.Event()
        self._proxy = _Server(("127.0.0.1", 0), _Handler)
        self._proxy.emulator = self
        self._thread = threading.Thread(target=self._proxy.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._proxy.server_address[1]}"

    def stop(self) -> None:
        self.stopped.set()
        self._proxy.shutdown()
        self._proxy.server_close()
        self._thread.join()
        self._backend.stop()

    def make_bucket(self, name: str) -> None:
        assert self._pass_on("POST", "/storage/v1/b", body=json.dumps({"name": name})).status == 200

    def put(self, bucket: str, name: str, data: bytes) -> None:
        meta = json.dumps({"name": name}).encode()
        parts = [b"--=\r\ncontent-type: application/json\r\n\r\n%b\r\n" % meta]
        parts += [b"--=\r\ncontent-type: application/octet-stream\r\n\r\n%b\r\n--=--" % data]
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart"
        headers = {"content-type": "multipart/related; boundary=="}
        assert self._pass_on("POST", path, headers, b"".join(parts)).status == 200

    def get(self, bucket: str, name: str) -> bytes | None:
        answer = self._pass_on("GET", f"{_object(bucket, name)}?alt=media")
        return answer.body if answer.status == 200 else None

    def drop(self, bucket: str, name: str) -> None:
        self._pass_on("DELETE", _object(bucket, name))

    def names(self, bucket: str) -> list[str]:
        listing = json.loads(self._pass_on("GET", f"/storage/v1/b/{bucket}/o").body)
        return [item["name"] for item in listing["items"]]

    def fault_for(self, request: str) -> Fault | None:
        with self._one_at_a_time:
            self.requests.append(request)
            for fault in self.faults:
                if fault.seen < fault.times and re.search(fault.match, request):
                    fault.seen += 1
                    return fault
        return None

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """Answer as the service would, with the emulator's help."""
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        with self._one_at_a_time:
            if method == "GET" and re.fullmatch(r"/storage/v1/b/[^/]+/o", url.path):
                return self._listing(url.path, query)
            if url.path.startswith("/upload/"):
                return self._upload(method, target, query, headers, body)
            if method == "GET" and "/o/" in url.path:
                return self._object(target, url.path, query, headers)
            return self._pass_on(method, target, headers, body)

    def _listing(self, path: str, query: dict[str, str]) -> Answer:
        kept = "&".join(f"{k}={quote(query[k])}" for k in ("prefix", "delimiter") if k in query)
        answer = self._pass_on("GET", f"{path}?{kept}")
        if answer.status != 200:
            return answer
        listing = json.loads(answer.body)
        entries = [(item["name"], item) for item in listing["items"]]
        entries += [(prefix, None) for prefix in listing["prefixes"]]
        first, last = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
        after = query.get("pageToken", "")
        entries = sorted(e for e in entries if first <= e[0] < last and e[0] > after)
        page = entries[: int(query.get("maxResults", self.page_size))]
        result: dict[str, Any] = {
            "items": [item for _, item in page if item],
            "prefixes": [name for name, item in page if not item],
        }
        if len(page) < len(entries):
            result["nextPageToken"] = page[-1][0]
        return Answer(200, answer.headers, json.dumps(result).encode())

    def _upload(
        self, method: str, target: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> Answer:
        session = query.get("upload_id")
        if session is not None:
            where, generation = self._sessions.get(session, ("", ""))
        else:
            meta, _ = json.JSONDecoder().raw_decode(body[body.index(b"{") :].decode("latin-1"))
            bucket = target.split("/b/")[1].split("/")[0]
            where, generation = _object(bucket, meta["name"]), query.get("ifGenerationMatch", "")
        if generation and generation != self._generation(where):
            return Answer(412)
        answer = self._pass_on(method, target, headers, body)
        if "Location" in answer.headers:
            opened = parse_qs(urlsplit(answer.headers["Location"]).query)["upload_id"][0]
            self._sessions[opened] = (where, generation)
        return answer

    def _object(
        self, target: str, path: str, query: dict[str, str], headers: dict[str, str]
    ) -> Answer:
        metadata = self._metadata(path)
        if metadata is None or query.get("generation", metadata["generation"]) != str(
            metadata["generation"]
        ):
            return Answer(404)
        start = re.match(r"bytes=(\d+)-", headers.get("range", ""))
        if start and int(start[1]) >= int(metadata["size"]):
            return Answer(416)
        answer = self._pass_on("GET", target, headers)
        answer.headers["X-Goog-Hash"] = f"crc32c={metadata['crc32c']}"
        answer.headers["X-Goog-Generation"] = str(metadata["generation"])
        return answer

    def _metadata(self, path: str) -> dict[str, Any] | None:
        answer = self._pass_on("GET", path.removeprefix("/download"))
        return json.loads(answer.body) if answer.status == 200 else None

    def _generation(self, path: str) -> str:
        return str((self._metadata(path) or {"generation": 0})["generation"])

    def _pass_on(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: Any = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            passed = {k: v for k, v in (headers or {}).items() if k != "transfer-encoding"}
            passed.setdefault("content-type", "application/json")
            connection.request(method, target, body, passed)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()


def _object(bucket: str, name: str) -> str:
    return f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    emulator: Emulator

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that clients cut."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.emulator.connections += 1

    def _handle(self) -> None:
        emulator = self.server.emulator
        headers = {key.lower(): value for key, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        fault = emulator.fault_for(f"{self.command} {unquote(self.path)}") or Fault("")
        if fault.cut == "before":
            return self._cut()
        if fault.flip == "request":
            body = _flipped(body)
        if fault.status is not None:
            answer = Answer(fault.status)
        else:
            answer = emulator.answer(self.command, self.path, headers, body)
        if fault.act is not None:
            fault.act()
        if fault.flip == "answer":
            answer = answer._replace(body=_flipped(answer.body))
        if fault.cut == "after":
            return self._cut()
        if fault.delay and emulator.stopped.wait(fault.delay):
            return self._cut()
        return self._send(answer, cut=fault.cut == "middle")

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle  # noqa: N815

    def _send(self, answer: Answer, *, cut: bool) -> None:
        self.send_response(answer.status)
        for key, value in answer.headers.items():
            if key.lower() not in {"content-length", "server", "date", "connection"}:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body[: len(answer.body) // 2] if cut else answer.body)
        if cut:
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


@dataclass
class Bucket:
    """A fresh bucket of the emulator, and the emulator's faults while a test has it."""

    emulator: Emulator
    name: str

    @property
    def root(self) -> str:
        return f"gs://{self.name}"

    def put(self, name: str, data: bytes) -> str:
        self.emulator.put(self.name, name, data)
        return f"{self.root}/{name}"

    def get(self, name: str) -> bytes | None:
        return self.emulator.get(self.name, name)

    def names(self) -> list[str]:
        return self.emulator.names(self.name)

    def drop(self, name: str) -> None:
        self.emulator.drop(self.name, name)

    def fail(self, match: str, **what: Any) -> Fault:
        fault = Fault(match, **what)
        self.emulator.faults.append(fault)
        return fault


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    running = Emulator()
    yield running
    running.stop()


@pytest.fixture
def bucket(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A fresh bucket, reachable through STORAGE_EMULATOR_HOST, also from child processes."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
    made = Bucket(emulator, f"test-{uuid.uuid4().hex[:12]}")
    emulator.make_bucket(made.name)
    emulator.requests.clear()
    emulator.connections = 0
    yield made
    emulator.faults.clear()
    emulator.page_size = 1000
