"""Image files that mean harm: cut, mislabelled, far larger inside than outside, or made to confuse a decoder."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from serve.serving import picture

KINDS = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM")
MAGIC = {
    "JPEG": b"\xff\xd8\xff\xe0",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "GIF": b"GIF89a",
    "WEBP": b"RIFF\x00\x01\x00\x00WEBP",
    "TIFF": b"II*\x00",
    "BMP": b"BM",
    "PPM": b"P6\n",
}
NO_IMAGES = {
    "text": b"hello, I am an image",
    "html": b"<!doctype html><html><script>alert(1)</script></html>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "svg with entities": b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg>&a;</svg>',
    "pdf": b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%id) (w) file\n",
    "zip": b"PK\x03\x04" + bytes(60),
    "gzip": b"\x1f\x8b\x08" + bytes(60),
    "program": b"\x7fELF" + bytes(200),
    "numpy": b"\x93NUMPY\x01\x00" + bytes(100),
    "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "video": b"\x00\x00\x00\x20ftypisom" + bytes(100),
    "heic": b"\x00\x00\x00\x20ftypheic" + bytes(100),
    "avi": b"RIFF\x00\x01\x00\x00AVI " + bytes(100),
    "photoshop": b"8BPS\x00\x01" + bytes(100),
    "icon": b"\x00\x00\x01\x00\x01\x00" + bytes(100),
    "FLI": bytes(4) + b"\x11\xaf" + bytes(200),
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "noise": np.random.default_rng(3).bytes(3000),
    "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "xpm": b'/* XPM */\nstatic char *x[] = {"99999 99999 1 1"};',
    "gbr": struct.pack(">II", 28, 2) + struct.pack(">III", 60000, 60000, 4),
}


def cut() -> Iterator[tuple[str, bytes]]:
    """Files of every format that end too early."""
    for kind in KINDS:
        whole = picture(kind, (120, 90))
        for share in (0.9, 0.5, 0.2, 0.05):
            yield f"{kind} cut at {share:.0%}", whole[: int(len(whole) * share)]
        for size in (3, 8, 20):
            yield f"{kind} cut at {size} bytes", whole[:size]


def wrong_magic() -> Iterator[tuple[str, bytes]]:
    """Files that begin as another format."""
    for place, kind in enumerate(KINDS):
        for other in (KINDS[(place + 1) % len(KINDS)], KINDS[(place + 3) % len(KINDS)]):
            yield f"{kind} that begins as {other}", MAGIC[other] + picture(kind)[len(MAGIC[other]) :]


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int, height: int, *chunks: bytes, depth: int = 8, colours: int = 2, pixels: bytes | None = None
) -> bytes:
    """A PNG file with a header that may lie."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0))
    data = [] if pixels is None else [chunk(b"IDAT", pixels)]
    return b"".join([MAGIC["PNG"], head, *chunks, *data, chunk(b"IEND", b"")])


def deflated(size: int) -> bytes:
    """Zeros, whole megabytes, a thousandth in size: a megabyte is compressed once and repeated."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    count = size >> 20
    adler = ((count << 20) % 65521) << 16 | 1  # of so many zeros
    return b"\x78\xda" + block * count + packer.flush() + struct.pack(">I", adler)


def tiff(*entries: tuple[int, int, int, int], tail: bytes = b"", following: int = 0) -> bytes:
    """A TIFF file of one directory: tag, type, count and value of each entry."""
    rows = b"".join(struct.pack("<HHII", *each) for each in entries)
    return b"II*\x00" + struct.pack("<IH", 8, len(entries)) + rows + struct.pack("<I", following) + tail


def webp(width: int, height: int) -> bytes:
    """The header of a WebP file of that canvas, and a picture that is smaller."""
    canvas = struct.pack("<I", 2) + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    inner = picture("WEBP")[12:]
    body = b"WEBPVP8X" + struct.pack("<I", len(canvas)) + canvas + inner
    return b"RIFF" + struct.pack("<I", len(body)) + body


def jpeg(width: int, height: int) -> bytes:
    """A JPEG file whose header lies about its size."""
    data = bytearray(picture("JPEG"))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def bmp(width: int, height: int, *, bits: int = 24, compression: int = 0, tail: bytes = b"") -> bytes:
    """A BMP file with a header that may lie."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(tail), 0, 0, 54) + head + tail


def gif(width: int, height: int, *, frame: tuple[int, int] = (1, 1), data: bytes = b"\x02\x02\x44\x01\x00") -> bytes:
    """A GIF file of that screen and one frame."""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return head + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + data + b";"


def real_png(side: int) -> bytes:
    """A small file that truly is a picture of that many black pixels a side."""
    return png(side, side, depth=1, colours=0, pixels=deflated((side // 8 + 1) * side + (1 << 20)))


def slow_jpeg(scans: int = 60_000) -> bytes:
    """A JPEG file of 0.7 MB whose picture is drawn over and over: 10 seconds of work or more."""
    stream = io.BytesIO()
    Image.new("RGB", (1000, 1000), (90, 120, 60)).save(stream, "JPEG", progressive=True)
    whole = stream.getvalue()
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * scans + whole[-2:]


def jpeg_of_fill_bytes(size: int) -> bytes:
    """A JPEG file with fill bytes before its first marker, which are read one by one."""
    whole = picture("JPEG")
    return whole[:2] + b"\xff" * size + whole[2:]


def bombs() -> Iterator[tuple[str, bytes]]:
    """Files that would take far more memory or time than they look like; a picture may have a million pixels."""
    plain = zlib.compress(bytes(50 * 151))
    yield "PNG, declared 100000 by 100000", png(100_000, 100_000, pixels=deflated(1 << 20))
    yield "PNG, declared 2147483647 by 2147483647", png(2**31 - 1, 2**31 - 1)
    yield "PNG, declared 4294967295 by 1", png(2**32 - 1, 1)
    yield "PNG, declared 0 by 0", png(0, 0, pixels=plain)
    yield "PNG, really 16000 by 16000", real_png(16_000)
    yield "PNG, 30000 by 150", png(30_000, 150, depth=1, colours=0, pixels=deflated(1 << 20))
    yield "PNG, text of 64 MB", png(50, 50, chunk(b"zTXt", b"a\0\0" + deflated(64 << 20)), pixels=plain)
    yield (
        "PNG, international text of 64 MB",
        png(50, 50, chunk(b"iTXt", b"a\0\x01\0\0\0" + deflated(64 << 20)), pixels=plain),
    )
    yield "PNG, text 80 times 1 MB", png(50, 50, *[chunk(b"zTXt", b"a\0\0" + deflated(1 << 20))] * 80, pixels=plain)
    yield "PNG, wrong checksum", png(50, 50, pixels=plain).replace(b"IHDR", b"IHDX")
    yield "PNG, chunk of 2 GB", MAGIC["PNG"] + struct.pack(">I", 2**31 - 1) + b"IHDR" + bytes(30)
    yield "PNG, no pixels", png(50, 50)
    yield "PNG, palette without palette", png(50, 50, colours=3, depth=16, pixels=plain)
    yield (
        "APNG, 4 billion frames",
        png(2000, 2000, chunk(b"acTL", struct.pack(">II", 2**32 - 1, 0)), pixels=deflated(12 << 20)),
    )
    yield "GIF, screen of 65535 by 65535", gif(65_535, 65_535)
    yield "GIF, frame of 65535 by 65535", gif(10, 10, frame=(65_535, 65_535))
    yield "GIF, no frame", b"GIF89a" + struct.pack("<HHBBB", 10, 10, 0, 0, 0) + b";"
    yield "GIF, endless extensions", b"GIF89a" + struct.pack("<HHBBB", 10, 10, 0, 0, 0) + b"!\xfe\x01a\x00" * 50_000
    yield "WebP, canvas of 16383 by 16383", webp(16_383, 16_383)
    yield "WebP, canvas of 16777215 by 16777215", webp(2**24 - 1, 2**24 - 1)
    yield "JPEG, declared 65500 by 65500", jpeg(65_500, 65_500)
    yield "JPEG, declared 65535 by 1", jpeg(65_535, 1)
    yield "JPEG, declared 0 by 0", jpeg(0, 0)
    yield "BMP, declared 2147483647 by 2147483647", bmp(2**31 - 1, 2**31 - 1)
    yield "BMP, declared 50000 by -50000", bmp(50_000, -50_000)
    yield "BMP, run lengths of 30000 by 30000", bmp(30_000, 30_000, bits=8, compression=1, tail=b"\xff\x00" * 1000)
    yield "BMP, minus one wide", bmp(-1, 10)
    yield "BMP, 10000 bits", bmp(10, 10, bits=10_000)
    yield "PPM, 99999 by 99999", b"P6 99999 99999 255\n" + bytes(100)
    yield "PPM, very long numbers", b"P6 " + b"9" * 100_000 + b" 1 255\n"
    yield "PPM, no end of comment", b"P6\n#" + b"a" * 100_000
    yield "PPM, colour depth 0", b"P6 2 2 0\n" + bytes(100)
    yield "PPM, plain and endless", b"P3 900 900 255\n" + b"1" * 1_000_000
    size = ((256, 4, 1, 60_000), (257, 4, 1, 60_000))
    small = ((256, 4, 1, 50), (257, 4, 1, 50), (258, 3, 1, 8), (262, 3, 1, 1))
    yield "TIFF, 60000 by 60000", tiff(*size, (258, 3, 1, 8), (259, 3, 1, 5), (262, 3, 1, 1), (273, 4, 1, 8))
    yield "TIFF, strip of 4 GB", tiff(*small, (259, 3, 1, 5), (273, 4, 1, 8), (279, 4, 1, 2**32 - 1))
    yield "TIFF, tag of 4 billion values", tiff(*small, (259, 3, 1, 1), (273, 4, 2**32 - 1, 8), (305, 2, 2**32 - 1, 8))
    yield "TIFF, strip behind the end", tiff(*small, (259, 3, 1, 1), (273, 4, 1, 2**31), (279, 4, 1, 2500))
    yield "TIFF, directory in a circle", tiff((256, 4, 1, 50), following=8)
    yield "TIFF, 60000 tags", tiff(*[(40_000 + n, 4, 1, 1) for n in range(20_000)])
    yield "TIFF, rows of 0", tiff(*small, (259, 3, 1, 8), (273, 4, 1, 8), (278, 4, 1, 0), (279, 4, 1, 10))
    yield "TIFF, Zip of 256 MB", tiff(
        (256, 4, 1, 900), (257, 4, 1, 900), (258, 3, 1, 64), (259, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 200),
        (279, 4, 1, 260_000), tail=bytes(90) + deflated(256 << 20),
    )  # fmt: skip


def harmless() -> Iterator[tuple[str, bytes]]:
    """Files that look dangerous and can be answered: what is in excess is never unpacked."""
    yield "PNG, pixels of 64 MB for 50 by 50", png(50, 50, pixels=deflated(64 << 20))
    yield "PNG followed by a program", picture() + b"\x7fELF" + bytes(1000)
    yield "GIF that is JavaScript too", picture("GIF") + b"*/=1;alert(1)//"
    yield "JPEG followed by a zip archive", picture("JPEG") + b"PK\x03\x04" + bytes(500)
    yield "JPEG with a script in its comment", picture("JPEG", comment=b"<script>alert(1)</script>")
    yield "GIF of 500 frames", frames("GIF", 500)
    yield "WebP of 100 frames", frames("WEBP", 100)
    yield "TIFF of 100 pages", frames("TIFF", 100)


def frames(kind: str, count: int) -> bytes:
    """An animation."""
    stream = io.BytesIO()
    shades = [Image.new("RGB", (40, 40), (n % 256, 99, 50)) for n in range(count)]
    shades[0].save(stream, kind, save_all=True, append_images=shades[1:])
    return stream.getvalue()
