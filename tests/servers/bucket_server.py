"""Owns an object store on a loopback port, with the part of S3's protocol that clients need here.

It has no folders and no rename, and an object appears when its last byte has arrived. Signatures
are not checked. A test can set its clock, and may act before any request or have it fail.
"""

import hashlib
import io
import threading
import time
from collections.abc import MutableMapping
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

KEYS_MAX = 1_000
CHUNKED = "STREAMING-"
"""How the sum of a body begins that comes in chunks, each with a line before it."""


class StoredObject(NamedTuple):
    """The bytes of an object, and when they were written."""

    data: bytes
    written_s: float

    @property
    def tag(self):
        return f'"{hashlib.md5(self.data).hexdigest()}"'

    @property
    def moment(self):
        return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self.written_s))


class Request(NamedTuple):
    """A request of a client."""

    method: str
    path: str


class Refusal(Exception):
    """The answer to a request that is not carried out: a status, and a code of S3's."""

    def __init__(self, status, code):
        super().__init__(status, code)
        self.status, self.code = status, code


class ObjectFiles(MutableMapping):
    """Objects as files below a folder. Hadoop writes there too, with checksum files; no folder in
    it is empty.
    """

    def __init__(self, folder):
        self.folder = folder
        self.written_s = {}

    def __setitem__(self, path, stored):
        if not path.endswith("/"):
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(stored.data)
            self.written_s[path] = stored.written_s

    def __getitem__(self, path):
        place = self.folder / path
        if path.endswith("/") or not place.is_file():
            raise KeyError(path)
        return StoredObject(place.read_bytes(), self.written_s.get(path, place.stat().st_mtime))

    def __delitem__(self, path):
        place = self.folder / path
        if path.endswith("/") or not place.is_file():
            raise KeyError(path)
        place.unlink()
        place.with_name(f".{place.name}.crc").unlink(missing_ok=True)
        with suppress(OSError):
            for parent in place.relative_to(self.folder).parents:
                (self.folder / parent).rmdir()

    def __iter__(self):
        paths = sorted(self.folder.rglob("*"))
        files = (path for path in paths if path.is_file() and path.suffix != ".crc")
        return (path.relative_to(self.folder).as_posix() for path in files)

    def __len__(self):
        return sum(1 for _ in self)


class BucketServer(ThreadingHTTPServer):
    """Objects by their path, which begins with the bucket: ``bank/recon/runs/…``."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects = ObjectFiles(folder)
        self.uploads = {}
        self.ahead_s = 0
        """How far its clock is ahead of ours."""
        self.on_request = lambda request: None
        """Called before each request; an error that it raises is the answer."""
        self.lock = threading.RLock()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_port}"

    def data(self, prefix):
        """The bytes of the objects below, by the rest of their paths."""
        with self.lock:
            objects = sorted(self.objects.items())
        return {
            path.removeprefix(prefix): stored.data
            for path, stored in objects
            if path.startswith(prefix)
        }

    def put(self, path, data):
        with self.lock:
            self.objects[path] = stored = StoredObject(data, time.time() + self.ahead_s)
        return stored

    def delete(self, path):
        with self.lock:
            self.objects.pop(path, None)

    def get(self, path):
        with self.lock:
            if path not in self.objects:
                raise Refusal(404, "NoSuchKey")
            return self.objects[path]

    def list_page(self, bucket, prefix, delimiter, after, most):
        """Objects and common prefixes, in the order of their names; whether there are more."""
        with self.lock:
            keys = sorted(
                path.removeprefix(f"{bucket}/")
                for path in self.objects
                if path.startswith(f"{bucket}/{prefix}")
            )
        names = {}
        for key in keys:
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            name = f"{prefix}{head}{delimiter}" if found else key
            if name > after:
                names[name] = bool(found)
        page = sorted(names)[:most]
        return [(name, names[name]) for name in page], len(names) > most

    def handle_error(self, request, client_address):
        """Ignore the error of a killed client."""


@contextmanager
def bucket_server(folder):
    """A server of objects in a folder, until the end of the block."""
    with BucketServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_one_request(self):
        with suppress(ConnectionError):
            super().handle_one_request()
            return
        self.close_connection = True

    def _answer(self):
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        path = unquote(url.path).lstrip("/")
        data = self._body()
        try:
            self.server.on_request(Request(self.command, path))
            status, headers, body = getattr(self, f"_{self.command.lower()}")(path, query, data)
        except Refusal as error:
            status, headers = error.status, {}
            body = f"<Error><Code>{error.code}</Code><Message>{error.code}</Message></Error>"
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        if self.command != "HEAD":
            headers = {"Content-Length": len(body), **headers}
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def _body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = _joined(self.rfile)
        else:
            data = _whole(self.rfile, int(self.headers.get("Content-Length") or 0))
        is_in_chunks = self.headers.get("x-amz-content-sha256", "").startswith(CHUNKED)
        return _joined(io.BytesIO(data)) if is_in_chunks else data

    def _head(self, path, query, data):
        if "/" not in path.rstrip("/"):
            return 200, {"Content-Length": 0}, b""
        stored = self.server.get(path)
        return 200, {"Content-Length": len(stored.data), **_described(stored)}, b""

    def _get(self, path, query, data):
        bucket, _, key = path.partition("/")
        if not key:
            return 200, {"Content-Type": "application/xml"}, self._listed(bucket, query)
        stored = self.server.get(path)
        if not (wanted := self.headers.get("Range")):
            return 200, _described(stored), stored.data
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        size = len(stored.data)
        begin = int(first) if first else max(size - int(last), 0)
        end = min(int(last) + 1, size) if first and last else size
        if begin >= size:
            raise Refusal(416, "InvalidRange")
        reach = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}
        return 206, {**_described(stored), **reach}, stored.data[begin:end]

    def _listed(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        most = min(int(query.get("max-keys", KEYS_MAX)), KEYS_MAX)
        page, has_more = self.server.list_page(bucket, prefix, delimiter, after, most)
        rows = [
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>",
            f"<KeyCount>{len(page)}</KeyCount><MaxKeys>{most}</MaxKeys>",
            f"<IsTruncated>{str(has_more).lower()}</IsTruncated>",
        ]
        if has_more:
            rows.append(f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>")
        for name, is_prefix in page:
            if is_prefix:
                rows.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
                continue
            with suppress(Refusal):
                stored = self.server.get(f"{bucket}/{name}")
                rows.append(
                    f"<Contents><Key>{escape(name)}</Key><LastModified>{stored.moment}</LastModified>"
                    f"<ETag>{escape(stored.tag)}</ETag><Size>{len(stored.data)}</Size></Contents>"
                )
        return f"<ListBucketResult>{''.join(rows)}</ListBucketResult>"

    def _put(self, path, query, data):
        if "uploadId" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = data
            return 200, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}, b""
        if source := self.headers.get("x-amz-copy-source"):
            stored = self.server.put(path, self.server.get(unquote(source).lstrip("/")).data)
            moment = f"<LastModified>{stored.moment}</LastModified>"
            return (
                200,
                {},
                f"<CopyObjectResult>{moment}<ETag>{escape(stored.tag)}</ETag></CopyObjectResult>",
            )
        return 200, {"ETag": self.server.put(path, data).tag}, b""

    def _post(self, path, query, data):
        bucket, _, key = path.partition("/")
        if "delete" in query:
            keys = [
                element.text for element in ET.fromstring(data).iter() if _name(element) == "Key"
            ]
            for name in keys:
                self.server.delete(f"{bucket}/{name}")
            return 200, {}, "<DeleteResult></DeleteResult>"
        place = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key>"
        if "uploads" in query:
            upload = hashlib.md5(f"{path}{time.monotonic_ns()}".encode()).hexdigest()
            self.server.uploads[upload] = {}
            name = "InitiateMultipartUploadResult"
            return 200, {}, f"<{name}>{place}<UploadId>{upload}</UploadId></{name}>"
        parts = self.server.uploads[query["uploadId"]]
        stored = self.server.put(path, b"".join(parts[number] for number in sorted(parts)))
        del self.server.uploads[query["uploadId"]]
        name = "CompleteMultipartUploadResult"
        return 200, {}, f"<{name}>{place}<ETag>{escape(stored.tag)}</ETag></{name}>"

    def _delete(self, path, query, data):
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"], None)
        else:
            self.server.delete(path)
        return 204, {}, b""

    def log_message(self, *args):
        """Print no line for a request."""


def _joined(stream):
    """The data of a body in chunks. Each has its size in a line before it; lines may follow."""
    data = b""
    while size := int(_line(stream).partition(b";")[0], 16):
        data += _whole(stream, size)
        _line(stream)
    while _line(stream):
        pass
    return data


def _line(stream):
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the body ended early")
    return line.strip()


def _whole(stream, size):
    data = stream.read(size)
    if len(data) < size:
        raise ConnectionError("the body ended early")
    return data


def _described(one):
    return {
        "ETag": one.tag,
        "Last-Modified": formatdate(one.written_s, usegmt=True),
        "Accept-Ranges": "bytes",
    }


def _name(element):
    return element.tag.rpartition("}")[2]
