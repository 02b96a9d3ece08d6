"""Writes a table of operations that run on another backend: make_operations.py SRC/TENSOR > operations.inc

It serves backends of tests that reach an operation's tensors first (tests/tensor/far, tests/tensor/cuda/copies.c). For
every operation of ops.h and erc.h it writes a struct of the arguments, a function that calls the other backend with
them, and a function for the table, which lists the tensors among them (reach) and submits both (give_work). An added
operation needs no line here. An operation with an argument by address is refused: it may run when the caller's memory
has changed. Operations on arrays of the host have no tensor, and operations on memory are the backend's own: both are
omitted."""

import re
import sys

OF_MEMORY = ("take", "give", "put", "get", "scratch_bytes", "sync")
FUNCTION = re.compile(r"(\w+ \**)\(\*(\w+)\)\(([^)]*)\)")
TABLES = ("cpl_backend", "cpl_ops", "cpl_erc_ops")  # tables of functions, which no operation takes by value
STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\} \1;", re.S)


def without_comments(path):
    with open(path, encoding="utf-8") as file:
        return re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)


def members(name, body):
    """Yields (type, name) of the members of a struct. A struct of arguments may hold no address and no array."""
    if name not in TABLES and re.search(r"[*\[]", body):
        sys.exit(
            f"{name} holds an address or an array: an operation that is given one may run after the caller has "
            "returned, so hold numbers as a cpl_tensor"
        )
    for kind, names in re.findall(r"(\w+) (\w+(?:,\s*\w+)*);", body):
        for name in re.split(r",\s*", names):
            yield kind, name


def tensors(kind, name, structs):
    """Returns the tensors in the argument `name`: "plan.offset" ..."""
    if kind == "cpl_tensor":
        return [name]
    return [inner for part, member in structs.get(kind, ()) for inner in tensors(part, f"{name}.{member}", structs)]


def arguments(operation, text):
    """Returns (type, name) of the arguments after the backend."""
    listed = []
    for argument in text.split(",")[1:]:
        argument = " ".join(argument.split())
        kind, name = argument.rsplit(" ", 1)
        if "*" in argument or "[" in argument:
            sys.exit(
                f"{operation} is given `{argument}` by its address: the operation may run after "
                "the caller has returned, so pass the struct by value, or numbers as a cpl_tensor"
            )
        listed.append((kind, name))
    return listed


def written(member, listed, structs):
    """Returns the three definitions of the operation `member` of the table: "gemm", "erc.sweep"."""
    name = member.replace(".", "_")
    within = [t for kind, argument in listed for t in tensors(kind, argument, structs)]
    return f"""
typedef struct {name}_arguments {{
    {" ".join(f"{kind} {argument};" for kind, argument in listed)}
}} {name}_arguments;

static void run_{name}(cpl_backend *be, const void *memory)
{{
    const {name}_arguments *given = memory;
    be->ops->{member}(be, {", ".join(f"given->{argument}" for _, argument in listed)});
}}

static void wrapped_{name}(cpl_backend *be, {", ".join(f"{kind} {argument}" for kind, argument in listed)})
{{
    reach(be, (cpl_tensor *const[]){{{", ".join("&" + t for t in within)}}}, {len(within)});
    const {name}_arguments given = {{{", ".join(argument for _, argument in listed)}}};
    give_work(be, run_{name}, &given, sizeof given);
}}"""


def operations(folder):
    ops, erc = (without_comments(f"{folder}/{file}.h") for file in ("ops", "erc"))
    structs = {name: list(members(name, body)) for name, body in STRUCT.findall(ops + erc)}
    for prefix, text in (
        ("", ops[ops.index("struct cpl_ops {") :]),
        ("erc.", erc[erc.index("struct cpl_erc_ops {") :]),
    ):
        for result, name, parameters in FUNCTION.findall(text):
            if name in OF_MEMORY:
                continue
            if result.strip() != "void":
                sys.exit(f"{name} returns a {result.strip()}: it may run later, so write the result to a cpl_tensor")
            yield prefix + name, arguments(name, parameters), structs


def main():
    found = list(operations(sys.argv[1]))
    print("/* written by tools/make_operations.py */")
    for member, listed, structs in found:
        print(written(member, listed, structs))
    print("\nstatic void fill_table(cpl_ops *ops)\n{")
    for member, _, _ in found:
        print(f"    ops->{member} = wrapped_{member.replace('.', '_')};")
    print("}")


if __name__ == "__main__":
    main()
