"""Kafka messages to bytes and back, for every API and version, driven by the layouts that the kafka-clients jar carries.
Those of Duramen's own requests are in `own`.

Messages are dictionaries with the layouts' own field names; a field left out takes its default. This is test code: it
encodes nonsense when asked to, and trusts what it decodes only as far as Python's slices do.
"""

import json
import re
import struct
import subprocess
import uuid
import zipfile
from functools import cache
from pathlib import Path

NO_UUID = "00000000-0000-0000-0000-000000000000"
OWN = Path(__file__).resolve().parent / "own"
FIXED = {"bool": ">?", "int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "uint32": ">I", "int64": ">q", "float64": ">d"}


@cache
def _jar():
    libs = subprocess.check_output([str(Path(__file__).resolve().parent.parent / "kafka/fetch.sh")], text=True).strip()
    return zipfile.ZipFile(next(Path(libs).glob("kafka-clients-*.jar")))


@cache
def layout(name):
    own = OWN / f"{name}.json"
    text = own.read_text() if own.exists() else _jar().read(f"common/message/{name}.json").decode()
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


@cache
def requests():
    """API key -> name ("Fetch") of every request that a broker's client listener knows."""
    found = {}
    for path in _jar().namelist():
        if path.startswith("common/message/") and path.endswith("Request.json"):
            request = layout(Path(path).stem)
            if "broker" in request.get("listeners", []):
                found[request["apiKey"]] = Path(path).stem.removesuffix("Request")
    return found


def in_range(versions, version):
    if not versions or versions == "none":
        return False
    low, _, high = versions.partition("-")
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    return int(low) <= version <= int(high or low)


def valid_versions(name):
    """The versions that a released broker accepts: the last one may still be in the making."""
    request = layout(name + "Request")
    low, _, high = request["validVersions"].partition("-")
    return range(int(low), int(high or low) + (0 if request.get("latestVersionUnstable") else 1))


def is_flexible(message, version):
    return in_range(layout(message)["flexibleVersions"], version)


def encode(message, version, values):
    schema = layout(message)
    out = bytearray()
    _Encoder(schema, version, out).struct(schema["fields"], values, message)
    return bytes(out)


def decode(message, version, data):
    """Returns the message and the number of bytes it took."""
    schema = layout(message)
    decoder = _Decoder(schema, version, data)
    values = decoder.struct(schema["fields"])
    return values, decoder.position


class _Codec:
    def __init__(self, schema, version):
        self.version = version
        self.flexible = in_range(schema["flexibleVersions"], version)
        self.structs = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}

    def present(self, field):
        return in_range(field["versions"], self.version)

    def is_tagged(self, field):
        return in_range(field.get("taggedVersions"), self.version)

    def is_nullable(self, field):
        return in_range(field.get("nullableVersions"), self.version)

    def is_compact(self, field):
        return self.flexible and field.get("flexibleVersions") != "none"

    def fields_of(self, type_name, field):
        return field.get("fields") or self.structs[type_name]


class _Encoder(_Codec):
    def __init__(self, schema, version, out):
        super().__init__(schema, version)
        self.out = out

    def struct(self, fields, values, what):
        unknown = set(values) - {field["name"] for field in fields}
        assert not unknown, f"{what} has no field {unknown}"
        tagged = []
        for field in fields:
            if not self.present(field):
                continue
            if self.is_tagged(field):
                if field["name"] in values:
                    tagged.append(field)
            else:
                self.field(field, values.get(field["name"], default_of(field)))
        if self.flexible:
            self.uvarint(len(tagged))
            for field in sorted(tagged, key=lambda field: field["tag"]):
                body = bytearray()
                inner = _Encoder.__new__(_Encoder)
                inner.__dict__.update(self.__dict__, out=body)
                inner.field(field, values[field["name"]])
                self.uvarint(field["tag"])
                self.uvarint(len(body))
                self.out += body

    def field(self, field, value):
        kind = field["type"]
        if kind.startswith("[]"):
            self.length(None if value is None else len(value), field, ">i")
            for element in value or []:
                self.one(kind[2:], field, element)
        else:
            self.one(kind, field, value)

    def one(self, kind, field, value):
        if kind in FIXED:
            self.out += struct.pack(FIXED[kind], value)
        elif kind == "uuid":
            self.out += uuid.UUID(value).bytes
        elif kind == "string":
            data = None if value is None else value.encode()
            self.length(None if data is None else len(data), field, ">h")
            self.out += data or b""
        elif kind in ("bytes", "records"):
            self.length(None if value is None else len(value), field, ">i")
            self.out += value or b""
        elif self.is_nullable(field) and not field["type"].startswith("[]"):
            self.out += struct.pack(">b", -1 if value is None else 1)
            if value is not None:
                self.struct(self.fields_of(kind, field), value, kind)
        else:
            self.struct(self.fields_of(kind, field), value, kind)

    def length(self, length, field, old_format):
        if self.is_compact(field):
            self.uvarint(0 if length is None else length + 1)
        else:
            self.out += struct.pack(old_format, -1 if length is None else length)

    def uvarint(self, value):
        while value >= 0x80:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)


class _Decoder(_Codec):
    def __init__(self, schema, version, data):
        super().__init__(schema, version)
        self.data = data
        self.position = 0

    def struct(self, fields):
        values = {}
        by_tag = {}
        for field in fields:
            if not self.present(field):
                continue
            if self.is_tagged(field):
                values[field["name"]] = default_of(field)
                by_tag[field["tag"]] = field
            else:
                values[field["name"]] = self.field(field)
        if self.flexible:
            for _ in range(self.uvarint()):
                tag, size = self.uvarint(), self.uvarint()
                if tag in by_tag:
                    end = self.position + size
                    values[by_tag[tag]["name"]] = self.field(by_tag[tag])
                    assert self.position == end, f"tagged field {by_tag[tag]['name']} says it has {size} bytes"
                else:
                    self.take(size)
        return values

    def field(self, field):
        kind = field["type"]
        if not kind.startswith("[]"):
            return self.one(kind, field)
        length = self.length(field, ">i")
        return None if length is None else [self.one(kind[2:], field) for _ in range(length)]

    def one(self, kind, field):
        if kind in FIXED:
            return self.fixed(FIXED[kind])
        if kind == "uuid":
            return str(uuid.UUID(bytes=bytes(self.take(16))))
        if kind == "string":
            length = self.length(field, ">h")
            return None if length is None else bytes(self.take(length)).decode()
        if kind in ("bytes", "records"):
            length = self.length(field, ">i")
            return None if length is None else bytes(self.take(length))
        if self.is_nullable(field) and not field["type"].startswith("[]") and self.fixed(">b") < 0:
            return None
        return self.struct(self.fields_of(kind, field))

    def length(self, field, old_format):
        length = self.uvarint() - 1 if self.is_compact(field) else self.fixed(old_format)
        return None if length < 0 else length

    def fixed(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def uvarint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def take(self, count):
        assert self.position + count <= len(self.data), f"the message ends at {len(self.data)}, inside a field"
        piece = self.data[self.position : self.position + count]
        self.position += count
        return piece


def default_of(field):
    kind = field["type"]
    given = field.get("default")
    if given == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind == "bool":
        return given in (True, "true")
    if kind == "float64":
        return float(given or 0)
    if kind in FIXED:
        return int(str(given or 0), 0)
    if kind == "uuid":
        return NO_UUID
    if kind == "string":
        return given or ""
    if kind in ("bytes", "records"):
        return b""
    return {}
