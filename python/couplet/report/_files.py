"""Files from untrusted sources, which are read once and within bounds, and the display of their text on a terminal.

The rules are those of the C program (docs/security.md). This file needs neither PyTorch nor the C library."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import re
import stat
import sys
import tempfile
from typing import IO, Any, Iterator, Optional, TextIO, Union, cast

Path = Union[str, "os.PathLike[str]"]
LARGEST_TEXT = 256 << 20  # bytes of a JSON file
# Control characters except the tab, characters that turn the direction of text, and bytes that are not UTF-8.
_UNSAFE = re.compile("[\x00-\x08\n-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class BadFile(Exception):
    """A fault of a file, as a sentence that does not repeat its name."""


# The two versions of control groups: their folder, their name in /proc/self/cgroup, the files with the limit and the
# use of memory, the line of memory.stat with the part that the kernel can reclaim.
_GROUPS = (
    ("sys/fs/cgroup", "", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _match(path: pathlib.Path, pattern: str) -> str:
    """Returns the match of the pattern's group in a file, or "" without a match or a file."""
    try:
        found = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.M)
    except OSError:
        return ""
    return found[1] if found else ""


def available_bytes(system: str = "/") -> int:
    """Returns the bytes of memory that are available, of the machine and of this process's control groups (containers,
    batch jobs); 8 GiB if the system does not report them. `system`: the folder that holds proc and sys."""
    root = pathlib.Path(system)
    left = int(_match(root / "proc/meminfo", r"^MemAvailable: *(\d+) kB$") or 8 << 20) << 10
    for folder, name, limit, used, cached in _GROUPS:
        group = pathlib.Path(_match(root / "proc/self/cgroup", rf"^\d+:(?:[^:]*,)?{name}(?:,[^:]*)?:/(.*)$"))
        for at in (root / folder / part for part in (group, *group.parents)):
            if most := _match(at / limit, r"^(\d+)$"):
                free = int(_match(at / "memory.stat", rf"^{cached} (\d+)$") or 0)
                left = min(left, max(0, int(most) - int(_match(at / used, r"^(\d+)$") or 0) + free))
    return left


def _open(path: Path) -> "IO[bytes]":
    """Opens a regular file. Raises BadFile if it is not regular, or cannot be read."""
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise _unreadable(error) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise BadFile("it is no regular file")
    return file


def _unreadable(error: Exception) -> BadFile:
    return BadFile(f"it cannot be read: {getattr(error, 'strerror', None) or error}")


def _too_large(size: int, largest: int) -> BadFile:
    return BadFile(f"it has {size:,} bytes, at most {largest:,} are read")


def largest_json() -> int:
    """Returns the largest number of bytes of a text to parse as JSON, whose values take up to 32 times that number."""
    return min(LARGEST_TEXT, available_bytes() // 32)


def read(path: Path, largest: Optional[int] = None, start: int = 0) -> bytes:
    """Returns the bytes of a regular file from `start` on, at most `largest`, by default largest_json(). Raises BadFile
    if the file is not regular, is larger, or cannot be read."""
    largest = largest_json() if largest is None else largest
    with _open(path) as file:
        try:
            size = max(0, os.fstat(file.fileno()).st_size - start)
            file.seek(start)
            blob = file.read(largest + 1) if size <= largest else b""
        except MemoryError:
            raise BadFile("not enough memory") from None
        except OSError as error:
            raise _unreadable(error) from None
    if size > largest or len(blob) > largest:
        raise _too_large(max(size, len(blob)), largest)
    return blob


def _unpacked(file: "IO[bytes]", name: str) -> "IO[bytes]":
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if not name.endswith(".zst"):
        return file
    try:
        import zstandard
    except ImportError:
        raise BadFile(
            "Zstandard needs the Python package zstandard (apt-get install python3-zstandard); or unpack it: zstd -d"
        ) from None
    packed: Any = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    return cast("IO[bytes]", packed.stream_reader(file, read_across_frames=True))


def pieces(path: Path, largest: int) -> "Iterator[bytes]":
    """Yields the content of a regular file, decompressed if its name ends in .gz or .zst. Raises BadFile if the file is
    not regular, cannot be read to its end, or is larger; the content before the fault was then yielded."""
    name = os.fsdecode(path)
    with _open(path) as file:
        size, packed = os.fstat(file.fileno()).st_size, name.endswith((".gz", ".zst"))
        if size > largest:
            raise _too_large(size, largest)
        if packed and size == 0:
            raise BadFile("the compressed data ends too early: it is empty")
        source, given = _unpacked(file, name), 0
        while True:
            try:
                piece = source.read(1 << 18)
            except EOFError:
                raise BadFile("the compressed data ends too early: the file is cut") from None
            except Exception as error:  # an error of the system, gzip, zlib or zstandard
                if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                    raise _unreadable(error) from None
                raise BadFile(f"corrupt compressed data: {first_line(error)}") from None
            if not piece:
                return
            given += len(piece)
            if given > largest:
                raise BadFile(f"it has more than the {largest:,} bytes that are read")
            yield piece


def write(path: Path, text: str) -> None:
    """Writes a file as a whole, or not at all. Raises OSError with the name of the file."""
    handle, name = tempfile.mkstemp(prefix=".tmp-", dir=os.path.dirname(path) or ".")
    try:
        with open(handle, "wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            os.umask(mask := os.umask(0))
            os.chmod(name, 0o666 & ~mask)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def parse(text: Union[str, bytes]) -> Any:
    """Returns the value of a JSON text. Raises BadFile if the text is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except UnicodeDecodeError:
        raise BadFile("it is not UTF-8 text") from None
    except MemoryError:
        raise BadFile("not enough memory") from None
    except RecursionError:
        raise BadFile("its JSON is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, and numbers with too many digits
        raise BadFile(f"it is not JSON: {error}") from None


def _shown(match: "re.Match[str]") -> str:
    code = ord(match[0])
    return f"\\x{code & 0xFF:02x}" if code < 0x80 or code >= 0xD800 else f"\\u{{{code:x}}}"


def shown(text: str) -> str:
    """Returns the text with escapes in place of characters that steer a terminal: \\xNN, or \\u{N} above 0x7f."""
    return _UNSAFE.sub(_shown, text)


def print_lines(*lines: str, file: Optional[TextIO] = None) -> None:
    """Prints lines that may hold text from a file, by default to standard output, if it is open. Characters that its
    encoding lacks are escaped. Raises OSError if standard output cannot be written, and does not try again."""
    file = file or sys.stdout
    if file is None:
        return
    encoding = file.encoding or "utf-8"
    try:
        for line in lines:
            print(shown(line).encode(encoding, "backslashreplace").decode(encoding), file=file)
        file.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
        if file is not sys.stderr:
            raise OSError(error.errno, error.strerror, "standard output") from None


say = print_lines  # the name by which couplet.bench and couplet.certify import it


def complain(*lines: str) -> None:
    """Prints lines to standard error, as print_lines does."""
    if sys.stderr is not None:
        print_lines(*lines, file=sys.stderr)


def first_line(error: BaseException) -> str:
    """Returns the first line of the error's text, at most 300 letters; "" where it has none."""
    try:
        return (str(error).splitlines() or [""])[0][:300]
    except Exception:
        return ""


def reason(error: BaseException) -> str:
    """Returns the reason why a file could not be used, as a sentence, also for an unexpected error."""
    if isinstance(error, MemoryError) or "can't allocate memory" in first_line(error):  # PyTorch's text
        return "not enough memory"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"its content leads to {type(error).__name__}: {first_line(error)}; if the file is whole, please report this"
