#!/usr/bin/env python3
"""Makes the training text and the held-out text from the packages that text.sh has unpacked.

    text.py UNPACKED OUT

UNPACKED has a folder per package: austen, bible, melville, union. OUT gets train.txt and
held-out.txt: plain ASCII, a paragraph per line, a blank line between paragraphs, and a form
feed on a line of its own between pieces (a chapter, a speech). Every 40th piece is held out.
The same packages give the same bytes.
"""
import re
import struct
import sys
import unicodedata
import zlib
from pathlib import Path

HELD_OUT_EVERY = 40
LEAST_PIECE_BYTES = 400  # shorter ones are tables of contents and dedications
SPEECHES_FROM_YEAR = 1934  # older ones are reports that were read out, in another English

PLAIN = str.maketrans({
    "‘": "'", "’": "'", "“": '"', "”": '"', "—": "--", "–": "-", "…": "...", "\u00a0": " ",
    "æ": "ae", "Æ": "Ae", "œ": "oe", "£": "L", "_": "", "\t": " ", "\f": "", "\r": "",
})


def plain(text):
    """ASCII with straight quotes; accents go, and so does what has no ASCII form."""
    text = unicodedata.normalize("NFKD", text.translate(PLAIN))
    return "".join(c for c in text if c == "\n" or " " <= c <= "~")


def paragraphs(text):
    """One line per paragraph, no markup of typists (rows of stars, doubled spaces)."""
    lines = (re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", plain(text)))
    return "\n\n".join(line for line in lines if re.search("[A-Za-z]{2}", line))


def r_strings(blob):
    """The elements of a character vector as R serialises it (format 3, big endian)."""
    if blob[:2] != b"X\n":
        raise ValueError("not R's binary serialisation")
    at = blob.index(struct.pack(">I", 16), 20) + 4  # type 16: a character vector
    (count,) = struct.unpack_from(">I", blob, at)
    at += 4
    for _ in range(count):
        (length,) = struct.unpack_from(">i", blob, at + 4)
        at += 8
        if length > 0:
            yield blob[at : at + length].decode()
            at += length
        else:
            yield ""


def austen(folder):
    """Six novels: an R package's data base, compressed records one after the other."""
    data = next(folder.rglob("data/Rdata.rdb")).read_bytes()
    while data:
        packed = zlib.decompressobj()  # four bytes of length come first
        blob = packed.decompress(data[4:])
        data = packed.unused_data
        book = "\n".join(r_strings(blob))
        yield from re.split(r"\n(?=(?:CHAPTER|Chapter|VOLUME|Volume) )", book)


def bible(folder):
    """The World English Bible as the SWORD library stores it: compressed blocks, an index entry
    per verse with block, offset and length, and OSIS markup in the text."""
    chapter = []
    for part in ("ot", "nt"):
        base = next(folder.rglob(part + ".bzs")).with_suffix("")
        blocks, verses, data = (base.with_suffix(s).read_bytes() for s in (".bzs", ".bzv", ".bzz"))
        text = [zlib.decompress(data[offset : offset + size])
                for offset, size, _ in struct.iter_unpack("<III", blocks)]
        for block, offset, size in struct.iter_unpack("<IIH", verses):
            verse = text[block][offset : offset + size].decode()
            if "<chapter " in verse and chapter:
                yield "".join(chapter)
                chapter = []
            verse = re.sub(r"<(note|title)\b.*?</\1>", " ", verse, flags=re.S)
            verse = re.sub(r'<(?:div|lg)\b[^>]*\bsID=[^>]*>', "\n\n", verse)
            chapter.append(re.sub(r"<[^>]*>", "", verse) + " ")
    yield "".join(chapter)


def melville(folder):
    """Moby Dick, a file per chapter."""
    files = folder.rglob("data/chapter_*.txt")
    for file in sorted(files, key=lambda f: int(re.sub(r"\D", "", f.stem))):
        yield file.read_text()


def union(folder):
    """State of the Union addresses, a file per speech."""
    for file in sorted(folder.rglob("data/*.txt")):
        if int(file.name[:4]) >= SPEECHES_FROM_YEAR:
            yield file.read_text()


def main():
    unpacked, out = map(Path, sys.argv[1:3])
    pieces = []
    for source in (austen, bible, melville, union):
        found = [p for p in map(paragraphs, source(unpacked / source.__name__))
                 if len(p) >= LEAST_PIECE_BYTES]
        if not found:
            raise SystemExit(f"text.py: no text found in {unpacked / source.__name__}")
        size = sum(map(len, found))
        print(f"text: {source.__name__:9}{len(found):5} pieces {size:10} bytes", file=sys.stderr)
        pieces += found
    for name, chosen in (("train.txt", lambda i: i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1),
                         ("held-out.txt", lambda i: i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)):
        text = "\n\f\n".join(p for i, p in enumerate(pieces) if chosen(i)) + "\n"
        (out / name).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
