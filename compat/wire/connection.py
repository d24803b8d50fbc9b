"""One connection that sends what it is told to and reads one frame at a time."""

import itertools
import socket
import struct

import schema
from golden import recorder

RESPONSE_TIMEOUT_S = 20


class Closed(Exception):
    """The broker closed the connection."""


class Connection:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        host, port = bootstrap.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=RESPONSE_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation_ids = itertools.count(1)
        # Recorded exchanges without an answer yet, by correlation id.
        self.asked = {}

    def call(self, api, version, body=None, timeout_s=RESPONSE_TIMEOUT_S, client_id="wire"):
        """Sends a request and returns its response."""
        correlation_id = self.send(api, version, body, client_id)
        return self.receive(api, version, correlation_id, timeout_s)

    def send(self, api, version, body=None, client_id="wire"):
        correlation_id = next(self.correlation_ids)
        request = request_header(api, version, correlation_id, client_id) + schema.encode(api + "Request", version, body or {})
        exchange = recorder.asked(api, version, body or {})
        if exchange:
            self.asked[correlation_id] = exchange
        self.send_frame(request)
        return correlation_id

    def receive(self, api, version, correlation_id, timeout_s=RESPONSE_TIMEOUT_S):
        answered, payload = self.receive_frame(timeout_s)
        assert answered == correlation_id, f"asked {correlation_id}, the answer is for {answered}"
        answer = parse_response(api, version, payload)
        exchange = self.asked.pop(correlation_id, None)
        if exchange:
            exchange.is_answered(answer)
        return answer

    def send_frame(self, payload):
        self.send_bytes(struct.pack(">i", len(payload)) + payload)

    def send_bytes(self, data):
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Closed from error

    def receive_frame(self, timeout_s=RESPONSE_TIMEOUT_S):
        """Returns the correlation id and all bytes after it; `TimeoutError` when nothing comes."""
        self.socket.settimeout(timeout_s)
        (size,) = struct.unpack(">i", self._exactly(4))
        self.socket.settimeout(RESPONSE_TIMEOUT_S)
        frame = self._exactly(size)
        return struct.unpack_from(">i", frame)[0], frame[4:]

    def is_closed_by_broker(self, timeout_s=5):
        """Waits for the broker's end of file; a frame that comes instead, or silence, means no."""
        self.socket.settimeout(timeout_s)
        try:
            closed = self.socket.recv(1) == b""
        except ConnectionResetError:
            closed = True
        except TimeoutError:
            closed = False
        for exchange in self.asked.values() if closed else ():
            exchange.is_answered("<closed>")
        return closed

    def close(self):
        self.socket.close()

    def _exactly(self, count):
        pieces = []
        while count:
            try:
                piece = self.socket.recv(min(count, 1 << 20))
            except ConnectionResetError as error:
                raise Closed from error
            if not piece:
                raise Closed
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def request_header(api, version, correlation_id, client_id="wire"):
    key = schema.layout(api + "Request")["apiKey"]
    values = {
        "RequestApiKey": key,
        "RequestApiVersion": version,
        "CorrelationId": correlation_id,
        "ClientId": client_id,
    }
    return schema.encode("RequestHeader", 2 if schema.is_flexible(api + "Request", version) else 1, values)


def parse_response(api, version, payload):
    """`payload` begins after the correlation id. ApiVersions' response header is the old one in every version."""
    flexible_header = schema.is_flexible(api + "Response", version) and api != "ApiVersions"
    if flexible_header:
        assert payload[0] == 0, "the response header has tagged fields"
        payload = payload[1:]
    values, size = schema.decode(api + "Response", version, payload)
    assert size == len(payload), f"{api} v{version}: {len(payload) - size} bytes are left over"
    return values
