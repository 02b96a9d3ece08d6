"""events.py: reads the event files that TensorBoard reads, by their published format, without TensorBoard."""

import struct


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frames(raw):
    """The messages; ValueError where a frame is not whole or a check sum is wrong."""
    at = 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        head, body = raw[at : at + 8], raw[at + 12 : at + 12 + length]
        sums = struct.unpack_from("<I", raw, at + 8) + struct.unpack_from("<I", raw, at + 12 + length)
        if sums != (masked(head), masked(body)):
            raise ValueError(f"a check sum at {at}")
        yield body
        at += 16 + length


def varint(raw, at):
    value = shift = 0
    while True:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if not raw[at - 1] & 128:
            return value, at


def fields(raw):
    """{field: [values]}"""
    found, at = {}, 0
    while at < len(raw):
        key, at = varint(raw, at)
        if key & 7 == 0:
            value, at = varint(raw, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", raw, at)[0], at + 8
        elif key & 7 == 5:
            value, at = struct.unpack_from("<f", raw, at)[0], at + 4
        else:
            length, at = varint(raw, at)
            value, at = raw[at : at + length], at + length
        found.setdefault(key >> 3, []).append(value)
    return found


def doubles(raw):
    return list(struct.unpack(f"<{len(raw) // 8}d", raw))


class Events:
    """scalars {tag: [(step, value)]}, histograms {tag: [(step, {...})]}, texts {tag: words}, starts [step], times."""

    def __init__(self, paths):
        self.scalars, self.histograms, self.texts, self.starts, self.times = {}, {}, {}, [], []
        for path in sorted(paths):
            each = [fields(body) for body in frames(path.read_bytes())]
            if each[0].get(3) != [b"brain.Event:2"]:
                raise ValueError(f"{path}: no version")
            for event in each[1:]:
                self.take(event)

    def take(self, event):
        step = event.get(2, [0])[0]
        self.times.append(event[1][0])
        if 7 in event:
            self.starts += [step] if fields(event[7][0]) == {1: [1]} else ["not a start"]
        for value in fields(event[5][0])[1] if 5 in event else ():
            one = fields(value)
            tag = one[1][0].decode()
            if 2 in one:
                self.scalars.setdefault(tag, []).append((step, one[2][0]))
            elif 5 in one:
                h = fields(one[5][0])
                self.histograms.setdefault(tag, []).append(
                    (
                        step,
                        {
                            "low": h[1][0],
                            "high": h[2][0],
                            "count": h[3][0],
                            "sum": h[4][0],
                            "squares": h[5][0],
                            "limits": doubles(h[6][0]),
                            "counts": doubles(h[7][0]),
                        },
                    )
                )
            else:
                self.texts[tag] = fields(one[8][0])[8][0].decode()
