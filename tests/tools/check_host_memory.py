#!/usr/bin/env python3
"""Checks the rule of tools/host_memory.py on planted lines: lines to find, with their places, and lines to accept."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import host_memory

DEVICE, HOST, TENSOR = "src/train/step.c", "src/inspect/silhouette.c", "src/tensor/memory.c"
ROUTING, DOOR = "src/inspect/routing/record.c", "src/model/couplet.c"

FOUND = [  # in rooms whose tensors are a backend's, and in those of the host
    "float x = *(float *)t.storage;",
    "memcpy(to, w->loss.storage, bytes);",
    "sum += cpl_f32(t)[0];",
    "cpl_i32(plan.offset)[1] = 3;",
    "double loss = *cpl_f64(step->loss);",
    "be->ops->add(be, y, cpl_tensor_1d(x, CPL_F32, n), 1);",
    "t = cpl_tensor_3d(\n    memory, CPL_F32, 1, 2, 3);",
    "cpl_tensor t = {memory, CPL_F32, 1, {n, 1, 1, 1}};",
    "f((cpl_tensor){memory, CPL_F32, 1, {n, 1, 1, 1}});",
]
FOUND_OF_HOST = ["cpl_tensor t = cpl_tensor_none();", "void f(cpl_backend *be);", "cpl_backend_cpu(&be, CPL_F32, 1);"]
FINE = [
    "s->data.seq_len = n; x = t->data;",
    "t = cpl_tensor_take(arena, cpl_tensor_2d(NULL, CPL_F32, n, d));",
    "cpl_tensor t = {NULL, dtype, 1, {n, 1, 1, 1}};",
    "/* cpl_f32(t) is\n * t.storage */",
    'puts("cpl_f32(t)"); // t.storage',
]
FINE_OF_HOST = ["const cpl_matrix W = {rows, n, d};", "return phase + 2 * cpl_backend_forks();"]

cases = [(path, line, True) for line in FOUND for path in (DEVICE, HOST, ROUTING, DOOR)]
cases += [(path, line, True) for line in FOUND_OF_HOST for path in (HOST, DOOR)]
cases += [(path, line, False) for line in FOUND_OF_HOST for path in (DEVICE, ROUTING)]
cases += [(DEVICE, line, False) for line in FINE + FINE_OF_HOST]
cases += [(path, line, False) for line in FINE_OF_HOST for path in (HOST, DOOR)]
cases += [(TENSOR, line, False) for line in FOUND]
wrong = [
    f"{path}: {line!r}: found {found}"
    for path, line, want in cases
    if bool(found := host_memory.breaks(path, "\n" + line)) != want
    or want
    and not any(f.startswith(f"{path}:2:") for f in found)
]

if len(host_memory.check({DEVICE: FINE[0], HOST: FOUND[0], ROUTING: FOUND[2]})) != 2:
    wrong.append("a file that breaks the rule is not found, or one that keeps it is")
print("\n".join(wrong) or f"{len(cases)} lines")
sys.exit(bool(wrong))
