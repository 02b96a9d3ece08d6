#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_classes.inc, the two-stage table of every code point's traits.

    python3 tools/make_unicode_classes.py > src/tokenizer/unicode_classes.inc

Classes come from src/tokenizer/unicode-classes.tsv and are exact. The bit NFC_CARE is only a warning: it is
set for every code point that NFC may change, reorder or join to the one before it, and for those that
this Python does not know. A code point that has it without need costs time and changes nothing.
"""
import sys
import unicodedata

LETTER, NUMBER, SPACE, NFC_CARE = 1, 2, 3, 4
CLASSES = {"L": LETTER, "N": NUMBER, "S": SPACE}
LAST = 0x110000


def second_halves():
    """Code points that stand second in a canonical decomposition: they may join the one before."""
    found = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # Hangul vowels and tails
    for code in range(LAST):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            found.add(int(parts[1], 16))
    return found


def needs_care(code, seconds):
    char = chr(code)
    if 0xD800 <= code < 0xE000:
        return False
    if unicodedata.category(char) == "Cn" or unicodedata.combining(char):
        return True
    return code in seconds or unicodedata.normalize("NFC", char) != char


def traits():
    seconds = second_halves()
    table = bytearray(NFC_CARE if needs_care(code, seconds) else 0 for code in range(LAST))
    for line in open("src/tokenizer/unicode-classes.tsv", encoding="ascii"):
        if not line.startswith("#"):
            first, last, name = line.split()
            for code in range(int(first, 16), int(last, 16) + 1):
                table[code] |= CLASSES[name]
    return table


def main():
    table = traits()
    numbers = {}
    index = [numbers.setdefault(bytes(table[at:at + 256]), len(numbers))
             for at in range(0, LAST, 256)]
    pages = list(numbers)
    out = sys.stdout
    out.write("/* unicode_classes.inc - made by tools/make_unicode_classes.py from unicode-classes.tsv;\n"
              f" * not edited by hand. {len(pages)} pages of 256 code points. */\n")
    out.write(f"const uint8_t cpl_unicode_page[{len(index)}] = {{\n")
    for at in range(0, len(index), 16):
        out.write("    " + ", ".join(map(str, index[at:at + 16])) + ",\n")
    out.write("};\n")
    out.write(f"const uint8_t cpl_unicode_table[{len(pages)}][256] = {{\n")
    for page in pages:
        if not any(page):
            out.write("    {0},\n")
            continue
        out.write("    {\n")
        for at in range(0, 256, 48):
            out.write("    " + ",".join(map(str, page[at:at + 48])) + ",\n")
        out.write("    },\n")
    out.write("};\n")


main()
