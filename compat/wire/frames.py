"""Compressed records made by hand, wrong ones included: each codec's own format around bytes that are not compressed at all."""

import struct
import zlib

MASK = 0xFFFFFFFF


def gzip(data, flags=0, extra=b"", method=8, crc=None, size=None):
    """One member; `extra` is what the flags put behind the header."""
    squeeze = zlib.compressobj(wbits=-15)
    deflated = squeeze.compress(data) + squeeze.flush()
    trailer = (zlib.crc32(data) if crc is None else crc, len(data) if size is None else size)
    return bytes([0x1F, 0x8B, method, flags, 0, 0, 0, 0, 0, 255]) + extra + deflated + struct.pack("<II", *trailer)


def gzip_header_checksum(flags):
    return struct.pack("<H", zlib.crc32(bytes([0x1F, 0x8B, 8, flags, 0, 0, 0, 0, 0, 255])) & 0xFFFF)


def snappy(data):
    """One block, one literal of at most 60 bytes."""
    return bytes([len(data), len(data) - 1 << 2]) + data


def framed_snappy(*blocks, version=1, compatible=1):
    """As Java clients write it."""
    framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\0" + struct.pack(">ii", version, compatible) + framed


STORED = 1 << 31
LZ4_INDEPENDENT, LZ4_BLOCK_CHECKSUM, LZ4_CONTENT_SIZE, LZ4_CONTENT_CHECKSUM = 0x60, 0x10, 0x08, 0x04


def lz4(*blocks, flags=LZ4_INDEPENDENT, size=0x40, content_size=None, header_checksum=None, end=bytes(4)):
    """One frame; `end` is the mark of its end, and what follows. The smallest blocks are of 64 KiB."""
    descriptor = bytes([flags, size]) + (b"" if content_size is None else struct.pack("<Q", content_size))
    checksum = xxh32(descriptor) >> 8 & 0xFF if header_checksum is None else header_checksum
    return struct.pack("<I", 0x184D2204) + descriptor + bytes([checksum]) + b"".join(blocks) + end


def lz4_block(data, checksum=b""):
    return struct.pack("<I", len(data) | STORED) + data + checksum


def lz4_checksum(data):
    return struct.pack("<I", xxh32(data))


def zstd(data, window=0, flags=0, rest=b"", end=b""):
    """One frame of one block; `window` is the byte that says how far back it may look, `rest` what follows that."""
    descriptor = bytes([flags]) if window is None else bytes([flags, window])
    return struct.pack("<I", 0xFD2FB528) + descriptor + rest + zstd_block(data) + end


def zstd_window(log, eighths=0):
    """The byte for 2^log bytes, and so many eighths of that more."""
    return log - 10 << 3 | eighths


def zstd_block(data, is_last=True):
    return (len(data) << 3 | is_last).to_bytes(3, "little") + data


def zstd_run(byte, count, is_last=True):
    """One byte, so many times."""
    return (count << 3 | 1 << 1 | is_last).to_bytes(3, "little") + bytes([byte])


def zstd_skippable(data):
    return struct.pack("<II", 0x184D2A50, len(data)) + data


def xxh32(data):
    """Of fewer than 16 bytes it is the short way through XXH32; the long one is here for whole contents."""
    one, two, three, four, five = 2654435761, 2246822519, 3266489917, 668265263, 374761393

    def turned(value, by):
        return (value << by | value >> 32 - by) & MASK

    at, length = 0, len(data)
    if length >= 16:
        lanes = [one + two & MASK, two, 0, -one & MASK]
        while length - at >= 16:
            for lane, (word,) in enumerate(struct.iter_unpack("<I", data[at : at + 16])):
                lanes[lane] = turned(lanes[lane] + word * two & MASK, 13) * one & MASK
            at += 16
        hash_ = sum(turned(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18))) & MASK
    else:
        hash_ = five
    hash_ = hash_ + length & MASK
    while length - at >= 4:
        (word,) = struct.unpack_from("<I", data, at)
        hash_ = turned(hash_ + word * three & MASK, 17) * four & MASK
        at += 4
    for byte in data[at:]:
        hash_ = turned(hash_ + byte * five & MASK, 11) * one & MASK
    hash_ = (hash_ ^ hash_ >> 15) * two & MASK
    hash_ = (hash_ ^ hash_ >> 13) * three & MASK
    return hash_ ^ hash_ >> 16
