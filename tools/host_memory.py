"""A rule of check_layers.py on the code that may follow a pointer to the numbers of a tensor.

A tensor's numbers lie in memory of a backend, which may differ from the host's. Only tensor/ follows tensor.storage,
returns it as C pointers (cpl_f32, cpl_i32, cpl_f64) and makes a tensor over given memory. Other rooms take tensors
from arenas (tensor/memory.h), and put and get their contents. The rooms that work on the host's memory by design have
arrays and cpl_matrix (tensor/host_ops.h), and neither tensors nor a backend."""

import re

HOST = ("src/checkpoint/", "src/inspect/", "src/model/couplet.c")
DEVICE = ("src/inspect/routing/",)  # on the device, though within HOST

FOLLOWS = [
    (r"(?:\.|->)storage\b", "follows the memory of a tensor"),
    (r"\bcpl_(?:f32|i32|f64)\(", "takes the numbers of a tensor as an array"),
    (r"\bcpl_tensor_[123]d\(\s*(?!NULL\b)", "makes a tensor over memory"),
    (r"\(cpl_tensor\)\s*\{\s*(?!NULL\b)|\bcpl_tensor\s+\w+\s*=\s*\{\s*(?!NULL\b)", "makes a tensor over memory"),
]
IS_HOST = [(r"\bcpl_(?:tensor\w*|backend|backend_cpu|ops)\b", "uses a tensor or a backend in a room of the host")]


def code_of(text):
    """Returns the code without comments and literals, line for line."""
    blank = lambda hit: re.sub(r"[^\n]", " ", hit[0])
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def breaks(path, text):
    """Returns the lines of a file of src/ that break the rule."""
    if path.startswith("src/tensor/"):
        return []
    host = path.startswith(HOST) and not path.startswith(DEVICE)
    code = code_of(text)
    return [
        f"{path}:{code.count(chr(10), 0, hit.start()) + 1}: {what}"
        for pattern, what in FOLLOWS + (IS_HOST if host else [])
        for hit in re.finditer(pattern, code)
    ]


def check(files):
    """Returns all violations in {path: text}."""
    return [line for path, text in files.items() for line in breaks(path, text)]
