"""gguf_file.py: a GGUF file by the specification: metadata, and the tensors as numbers."""

import array
import math
import struct

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
TYPES = {0: "F32", 1: "F16", 8: "Q8_0", 30: "BF16"}
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "Q8_0": (32, 34), "BF16": (1, 2)}


class Gguf:
    """A GGUF file. metadata: key -> value; tensors: name -> (type, shape outermost first, bytes)."""

    def __init__(self, path):
        self.raw, self.at = path.read_bytes(), 4
        assert self.raw[:4] == b"GGUF" and self.take("I") == 3
        n_tensors, n_pairs = self.take("Q"), self.take("Q")
        pairs = [(self.string(), self.value(self.take("I"))) for _ in range(n_pairs)]
        rows = [
            (
                self.string(),
                [self.take("Q") for _ in range(self.take("I"))][::-1],
                TYPES[self.take("I")],
                self.take("Q"),
            )
            for _ in range(n_tensors)
        ]
        begin = (self.at + 31) // 32 * 32
        self.metadata, self.tensors = dict(pairs), {}
        for name, shape, kind, offset in rows:
            numbers, size = BLOCKS[kind]
            data = self.raw[begin + offset : begin + offset + math.prod(shape) // numbers * size]
            self.tensors[name] = (kind, shape, data)
        assert len(self.metadata) == n_pairs and len(self.tensors) == n_tensors

    def take(self, form):
        (value,) = struct.unpack_from("<" + form, self.raw, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self):
        length = self.take("Q")
        self.at += length
        return self.raw[self.at - length : self.at].decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.take(FORMATS[kind])
        inner = self.take("I")
        return [self.value(inner) for _ in range(self.take("Q"))]

    def numbers(self, name):
        kind, _, data = self.tensors[name]
        if kind == "F32":
            return array.array("f", data)
        if kind == "BF16":
            return array.array("f", b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2)))
        if kind == "F16":
            return array.array("f", [one for (one,) in struct.iter_unpack("<e", data)])
        return array.array("f", [scale * one for scale, *ones in struct.iter_unpack("<e32b", data) for one in ones])
