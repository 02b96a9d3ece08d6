#!/usr/bin/env python3
"""check_remote_whole.py COUPLET: files that are read as a whole, such as an index: a file that is cut is resumed, and
every answer is compared with the first. The index is longer than the requested beginning of each file."""

import json
import shutil
import sys

import faulty_server as wrongly
import remote_case
from checkpoints import sharded
from exchange import Answer
from program import check

INDEX = "model.safetensors.index.json"


def long_index(folder):
    path = folder / INDEX
    index = json.loads(path.read_text())
    index["metadata"] = {"note": "x" * (1 << 19)}
    path.write_text(json.dumps(index))
    return path.stat().st_size


def in_turn(*faults):
    """Gives the n-th request the n-th fault. None, and all later requests, give the right answer."""
    left = list(faults)

    def fault(seen, make):
        one = left.pop(0) if left else None
        return one(seen, make) if one else make()

    return fault


def cut_after(seen, make):
    """Cuts in the middle, so slowly that the bytes before the cut are read."""
    answer = make()
    answer.cut, answer.length, answer.piece, answer.pause = 100000, answer.promised(), 20000, 0.05
    return answer


def unnamed(fault):
    """Returns the fault without ETag and Last-Modified."""

    def both(seen, make):
        answer = fault(seen, make) if fault else make()
        answer.headers.pop("ETag", None)
        return answer

    return both


def unsaid_length(more):
    """Sends the whole file and `more`, without Content-Length."""

    def fault(seen, make):
        answer = make()
        return Answer(200, answer.headers, iter([*answer.pieces(), more]))

    return fault


def part_unasked(seen, make):
    """Answers 206 to a request without a range."""
    answer = make()
    size = answer.path.stat().st_size
    return Answer(206, answer.headers | {"Content-Range": f"bytes 0-99/{size}"}, path=answer.path, range=(0, 99))


class Asked:
    """Records the requests for the index."""

    def __init__(self, one, place, local, size):
        self.one, self.place, self.local, self.size = one, place, local, size

    def begin(self, *faults):
        self.one.servers.clear()
        self.one.servers.misbehave(in_turn(*faults), path=f"(resolve-cache|files).*{INDEX}$")

    def ranges(self):
        """Returns for each request of the index None for the whole file, otherwise first and last byte."""
        with self.one.servers.lock:
            texts = [
                seen.headers.get("range")
                for seen in self.one.servers.seen
                if seen.status < 300 and seen.file.endswith(INDEX)
            ]
        return [text and tuple(map(int, text.removeprefix("bytes=").split("-"))) for text in texts]

    def holds(self, what, wanted, *faults):
        """Checks the figures, and the requests: "head", "whole", "rest"."""
        self.begin(*faults)
        check(self.one.json(self.place) == self.local, f"{what}: other figures")
        names = ["whole" if span is None else "head" if span[0] == 0 else "rest" for span in self.ranges()]
        check(names == wanted, f"{what}: {names} were asked for, wanted {wanted}")
        ends = [span[1] for span in self.ranges() if span and span[0]]
        check(all(end == self.size - 1 for end in ends), f"{what}: a rest that ends at {ends} of {self.size}")

    def fails(self, what, sentence, *faults):
        self.begin(*faults)
        self.one.fails(sentence, self.place, what=what)


def check_plain(one, folder, local, size):
    """Below https:// the beginning of the index is requested first, to find whether it exists."""
    asked = Asked(one, one.servers.serve("plain", folder), local, size)
    asked.holds("nothing wrong", ["head", "whole"])
    asked.holds("a cut", ["head", "whole", "rest"], None, cut_after)
    asked.holds("two cuts", ["head", "whole", "rest", "rest"], None, cut_after, cut_after)
    asked.holds("a cut without ETag", ["head", "whole", "whole"], unnamed(None), unnamed(cut_after), unnamed(None))
    asked.holds(
        "a cut, then the whole file", ["head", "whole", "rest", "whole"], None, cut_after, wrongly.ignores_ranges
    )
    asked.holds("no Content-Length", ["head", "whole"], None, unsaid_length(b""))
    changed = "the file changed in between [(]its {} is not what it was[)]"
    asked.fails("another ETag", changed.format("ETag"), None, wrongly.other_tag)
    asked.fails("another ETag after a cut", changed.format("ETag"), None, cut_after, wrongly.other_tag)
    asked.fails("a longer file", changed.format("length"), None, unsaid_length(b" "))
    asked.fails(
        "a part that nobody asked for",
        'answered with other bytes than those asked for: "bytes 0-99/',
        None,
        part_unasked,
    )


def check_hub(one, folder, local, size):
    """From a hub the index is requested once. No byte of it was read when it turns out to be another."""
    asked = Asked(one, one.servers.add("org/model", folder), local, size)
    asked.holds("hub: nothing wrong", ["whole"])
    asked.holds("hub: a cut", ["whole", "rest"], cut_after)
    asked.holds("hub: no Content-Length", ["whole"], unsaid_length(b""))
    asked.holds("hub: another file after a cut", ["whole", "rest", "whole"], cut_after, wrongly.other_tag)
    asked.fails(
        "hub: another file each time",
        "the file changed in between [(]its ETag is not what it was[)]",
        cut_after,
        wrongly.other_tag,
        cut_after,
        wrongly.other_tag,
    )


def body(one):
    folder = one.work / "model"
    sharded(folder, layers=2, d=16, D=64)
    size = long_index(folder)
    local = one.json(folder)
    check_plain(one, folder, local, size)
    check_hub(one, folder, local, size)
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(remote_case.main(body))
