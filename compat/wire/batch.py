"""Record batches (format v2) made and read by hand, wrong ones included."""

import struct

NO_PRODUCER = -1
CONTROL, TRANSACTIONAL, LOG_APPEND_TIME = 0x20, 0x10, 0x08
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_AT, CRC_FROM = 17, 21


def _crc32c_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def varint(value):
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(data):
    return varint(-1) if data is None else varint(len(data)) + data


def record(value, key=None, headers=(), offset_delta=0, timestamp_delta=0):
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + _sized(key) + _sized(value) + varint(len(headers))
    for name, content in headers:
        body += _sized(name) + _sized(content)
    return varint(len(body)) + body


def batch(
    values,
    *,
    keys=None,
    timestamp=1_700_000_000_000,
    timestamps=None,
    attributes=0,
    producer_id=NO_PRODUCER,
    epoch=-1,
    sequence=-1,
    base_offset=0,
    magic=2,
    count=None,
    last_offset_delta=None,
    leader_epoch=-1,
    payload=None,
):
    """A batch of `values`; every keyword is a header field to set, rightly or wrongly. The CRC is right in any case."""
    keys = keys or [None] * len(values)
    timestamps = timestamps or [timestamp] * len(values)
    if payload is None:
        payload = b"".join(
            record(value, key, offset_delta=index, timestamp_delta=at - timestamps[0])
            for index, (value, key, at) in enumerate(zip(values, keys, timestamps))
        )
    fields = [
        base_offset,
        HEADER.size - 12 + len(payload),
        leader_epoch,
        magic,
        0,
        attributes,
        len(values) - 1 if last_offset_delta is None else last_offset_delta,
        timestamps[0],
        max(timestamps),
        producer_id,
        epoch,
        sequence,
        len(values) if count is None else count,
    ]
    data = bytearray(HEADER.pack(*fields) + payload)
    return seal(data)


def seal(data):
    """Puts the right CRC on a batch that was changed."""
    data = bytearray(data)
    struct.pack_into(">I", data, CRC_AT, crc32c(data[CRC_FROM:]))
    return bytes(data)


class Batch:
    """A batch as fetched."""

    def __init__(self, data):
        (
            self.base_offset,
            self.length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.epoch,
            self.sequence,
            self.count,
        ) = HEADER.unpack_from(data)
        self.bytes = data[: self.length + 12]

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    def crc_is_right(self):
        return self.crc == crc32c(self.bytes[CRC_FROM:])

    def values(self):
        """The values of an uncompressed batch."""
        return [value for _, value in self.records()]

    def records(self):
        """The keys and values of an uncompressed batch."""
        assert self.attributes & 7 == 0, "compressed"
        reader = _Records(self.bytes[HEADER.size :])
        return [reader.record() for _ in range(self.count)]


def batches(data):
    """The whole batches in a fetched range; a fetch may end in the middle of one."""
    found = []
    while len(data) >= HEADER.size and len(data) >= struct.unpack_from(">i", data, 8)[0] + 12:
        found.append(Batch(data))
        data = data[found[-1].length + 12 :]
    return found


class _Records:
    def __init__(self, data):
        self.data = data
        self.position = 0

    def record(self):
        end = self.varint()
        end += self.position
        self.position += 1
        self.varint(), self.varint()
        key, value = self.sized(), self.sized()
        self.position = end
        return key, value

    def sized(self):
        size = self.varint()
        if size < 0:
            return None
        self.position += size
        return self.data[self.position - size : self.position]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
            shift += 7
