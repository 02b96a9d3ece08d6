"""Reads the tensors of checkpoints as trainers write them, one piece after the other: folders of
torch.distributed.checkpoint (DCP; torch_dist of Megatron-Core), and files of torch.save.

No object of a file is believed or run. `.metadata` is a pickle, which _Unpickler reads: every class that it admits
becomes a _Record, which has no code. Tensors are read by torch.load(weights_only=True). Offsets, sizes and types are
compared with the tensors that are there."""

from __future__ import annotations

import collections
import io
import math
import pathlib
import pickle
import re
import stat
import zipfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from .models._families import LAYER, TABLE
from .report._files import first_line

Sizes = Tuple[int, ...]
BLOCK = 1 << 20  # bytes that are read at a time for a checksum
MAPPED = 64 << 20  # bytes of a file of torch.save that are read before its mapping is given back
SAVED = (".pt", ".pth", ".bin", ".ckpt")  # endings of files of torch.save
OPTIMIZER = re.compile(r"(chained_\d+\.)?optim(izer)?\.")  # names that are no weights


class Piece(NamedTuple):
    """A box of a tensor: [offsets, offsets + sizes)."""

    offsets: Sizes
    sizes: Sizes
    read: Callable[[], torch.Tensor]  # raises ValueError


class Stored(NamedTuple):
    """A tensor of a checkpoint. Its pieces cover it, each number once."""

    name: str
    dtype: torch.dtype
    shape: Sizes
    pieces: List[Piece]


class _Record:
    """An object of `.metadata`: its fields, without its class's code."""

    def __init__(self, *words: Any) -> None:
        self.words = words

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str) -> Any:
        state = getattr(self, "state", None)
        return state.get(name) if isinstance(state, dict) else None


class _Tensor(_Record):
    """A TensorStorageMetadata."""


DCP = "torch.distributed.checkpoint."
# The classes that `.metadata` may name: torch's, and those of the writers that have one of their own.
RECORDS = {
    DCP + "metadata": "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta TensorProperties "
    "TensorStorageMetadata _MEM_FORMAT_ENCODING",
    DCP + "filesystem": "_StorageInfo _StoragePrefix",
    DCP + "planner": "BytesIOWriteData SavePlan TensorWriteData WriteItem WriteItemType",
    "megatron.core.dist_checkpointing.strategies.torch": "MCoreMetadata MCoreSavePlan",
    "olmo_core.distributed.checkpoint.filesystem": "_StorageInfo _StoragePrefix",
    "torch.serialization": "_get_layout",
    "pathlib": "Path PosixPath PurePosixPath WindowsPath PureWindowsPath",
}
PLAIN: Dict[Tuple[str, str], Any] = {
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}


class _Refused(Exception):
    """A name that is no part of metadata."""


def _size_of(path: pathlib.Path) -> int:
    there = path.stat()
    if not stat.S_ISREG(there.st_mode):
        raise ValueError(f"{path}: no regular file")
    return there.st_size


class _Unpickler(pickle._Unpickler):
    """Reads a pickle in Python: pickle.Unpickler makes its memo as long as an index of the file says."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in PLAIN:
            return PLAIN[module, name]
        if name in RECORDS.get(module, "").split():
            return _Tensor if name == "TensorStorageMetadata" else _Record
        if module == "torch" and isinstance(found := getattr(torch, name, None), (torch.dtype, torch.layout)):
            return found
        raise _Refused(f"it names {module}.{name}, which is no part of the metadata of a checkpoint: it is not run")


def _read_metadata(path: pathlib.Path) -> _Record:
    try:
        _size_of(path)
        found = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except OSError:
        raise
    except _Refused as error:
        raise ValueError(f"{path}: {error}") from None
    except Exception as error:  # pickle's errors are of any type
        raise ValueError(f"{path}: cut or damaged: {type(error).__name__}: {first_line(error)}") from None
    if not isinstance(found, _Record) or not all(
        isinstance(found.get(name), dict) for name in ("state_dict_metadata", "storage_data")
    ):
        raise ValueError(f"{path}: no metadata of torch.distributed.checkpoint")
    return found


def _sizes(value: Any) -> Optional[Sizes]:
    """Returns the value if it is a tuple of numbers that may be sizes."""
    right = isinstance(value, tuple) and all(type(size) is int and 0 <= size < 1 << 62 for size in value)
    return value if right else None


def _sentence(sizes: Sizes) -> str:
    return f"[{','.join(map(str, sizes))}]"


def _check_sums(source: Any) -> None:
    """Raises an exception if a record of a file of torch.save has another checksum than the file says, which torch.load
    does not look at. 0: none was written."""
    if not zipfile.is_zipfile(source):
        return
    with zipfile.ZipFile(source) as records:
        for record in records.infolist():
            if record.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{record.filename} is compressed")
            with records.open(record) as file:
                while record.CRC and file.read(BLOCK):
                    pass


def load(source: Any, where: str, again: bool = False, **more: Any) -> Any:
    """Returns the content of a file of torch.save. Raises ValueError if it is damaged, or has more than tensors and
    plain containers. Checksums are compared unless the file is read `again`."""
    try:
        if not again:
            _check_sums(source)
        if hasattr(source, "seek"):
            source.seek(0)
        return torch.load(source, map_location="cpu", weights_only=True, **more)
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise
        called = re.search(r"GLOBAL ([\w.]+)", str(error))
        if called:
            raise ValueError(
                f"{where}: it names {called[1]}, which is no tensor and no plain container: it is not run"
            ) from None
        if "_use_new_zipfile_serialization" in str(error):
            raise ValueError(
                f"{where}: no file of torch.save of PyTorch 1.6 or newer: load and save it again"
            ) from None
        raise ValueError(f"{where}: cut or damaged: {type(error).__name__}: {first_line(error)}") from None


class _Part(io.RawIOBase):
    """The bytes [start, start + length) of a file."""

    def __init__(self, file: io.BufferedReader, start: int, length: int) -> None:
        self.file, self.start, self.length, self.at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = max(0, (0, self.at, self.length)[whence] + offset)
        return self.at

    def readinto(self, buffer: Any) -> int:
        part = memoryview(buffer)[: max(0, self.length - self.at)]
        self.file.seek(self.start + self.at)
        count = self.file.readinto(part)
        self.at += count
        return count


class _Shard(NamedTuple):
    """The place of a piece of a tensor in a file of a DCP folder."""

    path: pathlib.Path
    offset: int
    length: int
    name: str
    dtype: torch.dtype
    sizes: Sizes

    def read(self) -> torch.Tensor:
        where = f"{self.path}: tensor {self.name}"
        with open(self.path, "rb") as file:
            there = load(_Part(file, self.offset, self.length), where)
        if not isinstance(there, torch.Tensor):
            raise ValueError(f"{where}: a {type(there).__name__} is in its place")
        if there.dtype != self.dtype or tuple(there.shape) != self.sizes or there.layout != torch.strided:
            raise ValueError(
                f"{where}: {there.dtype} {_sentence(tuple(there.shape))} is in its place, but .metadata says "
                f"{self.dtype} {_sentence(self.sizes)}"
            )
        return _backed(there.detach(), where)


def _backed(tensor: torch.Tensor, where: str) -> torch.Tensor:
    if tensor.nbytes > tensor.untyped_storage().nbytes():
        raise ValueError(f"{where}: its {tensor.nbytes:,} bytes are not in the file")
    return tensor


class _Folder:
    """A DCP folder: `.metadata`, and the shards that it names."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.path = folder, folder / ".metadata"
        self.metadata = _read_metadata(self.path)
        self.places: Dict[Tuple[str, Optional[Sizes]], _Record] = {}
        self.bytes: Dict[pathlib.Path, int] = {}  # sizes of the shards, by path
        for index, place in self.metadata.get("storage_data").items():
            if isinstance(index, _Record) and isinstance(place, _Record):
                self.places[index.get("fqn"), _sizes(index.get("offset"))] = place

    def tensors(self) -> Iterator[Stored]:
        for name, tensor in self.metadata.get("state_dict_metadata").items():
            if isinstance(tensor, _Tensor) and isinstance(name, str) and not OPTIMIZER.match(name):
                yield self._tensor(name, tensor)

    def _fault(self, name: str, why: str) -> ValueError:
        return ValueError(f"{self.path}: tensor {name}: {why}")

    def _tensor(self, name: str, tensor: _Tensor) -> Stored:
        properties, shape = getattr(tensor.get("properties"), "state", None), _sizes(tensor.get("size"))
        dtype = properties[0] if isinstance(properties, tuple) and properties else None
        chunks = tensor.get("chunks")
        if not isinstance(dtype, torch.dtype) or shape is None or not isinstance(chunks, list):
            raise self._fault(name, "its type, size or chunks are missing")
        boxes: Dict[Sizes, Sizes] = {}
        for chunk in chunks:
            offsets, sizes = (
                _sizes(chunk.get(field)) if isinstance(chunk, _Record) else None for field in ("offsets", "sizes")
            )
            if offsets is None or sizes is None or not len(offsets) == len(sizes) == len(shape):
                raise self._fault(name, "the offsets or sizes of a chunk are missing")
            if math.prod(sizes):
                boxes[offsets] = sizes
        self._check_cover(name, shape, boxes)
        pieces = [Piece(at, sizes, self._shard(name, dtype, at, sizes).read) for at, sizes in boxes.items()]
        return Stored(name, dtype, shape, pieces)

    def _check_cover(self, name: str, shape: Sizes, boxes: Dict[Sizes, Sizes]) -> None:
        """Raises ValueError if the boxes do not cover the tensor, or cover a number twice. Shards form a grid: no box
        reaches beyond the next offset of an axis."""
        cuts = [sorted({at[axis] for at in boxes} | {size}) for axis, size in enumerate(shape)]
        after = [dict(zip(some, some[1:])) for some in cuts]
        inside = all(
            at[axis] + sizes[axis] <= after[axis].get(at[axis], 0)
            for at, sizes in boxes.items()
            for axis in range(len(shape))
        )
        if not inside or sum(map(math.prod, boxes.values())) != math.prod(shape):
            raise self._fault(name, f"its {len(boxes)} chunks do not cover {_sentence(shape)}, each number once")

    def _shard(self, name: str, dtype: torch.dtype, at: Sizes, sizes: Sizes) -> _Shard:
        place = self.places.get((name, at)) or self.places.get((name, None)) or _Record()
        file, part = place.get("relative_path"), _sizes((place.get("offset"), place.get("length")))
        if not isinstance(file, str) or part is None:
            raise self._fault(name, f"no shard is named for its chunk at {_sentence(at)}")
        if place.get("transform_descriptors"):
            raise self._fault(name, "it is stored with transforms, which are not read: save it without extensions")
        if pathlib.PurePath(file).is_absolute() or ".." in pathlib.PurePath(file).parts:
            raise self._fault(name, f"its shard {file} is outside the folder")
        path, need = self.folder / file, math.prod(sizes) * dtype.itemsize
        if path not in self.bytes:
            self.bytes[path] = _size_of(path)
        if need > part[1] or sum(part) > self.bytes[path]:
            raise ValueError(
                f"{path}: tensor {name}: cut or damaged: .metadata says {need:,} bytes in the {part[1]:,} at "
                f"{part[0]:,} of a file of {self.bytes[path]:,}"
            )
        return _Shard(path, part[0], part[1], name, dtype, sizes)


class _Saved:
    """A file of torch.save, mapped into memory while it is read."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.bytes, self.is_checked = path, 0, False
        self.kept: Optional[Dict[str, torch.Tensor]] = None

    def _tensors(self) -> Dict[str, torch.Tensor]:
        if self.kept is None:
            _size_of(self.path)
            self.kept = dict(_flat(load(self.path, str(self.path), self.is_checked, mmap=True)))
            self.is_checked = True
        return self.kept

    def read(self, name: str) -> torch.Tensor:
        tensor = _backed(self._tensors()[name], f"{self.path}: tensor {name}")
        self.bytes += tensor.nbytes
        if self.bytes > MAPPED:
            self.kept, self.bytes = None, 0
        return tensor

    def tensors(self) -> List[Stored]:
        def stored(name: str, tensor: torch.Tensor) -> Stored:
            shape = tuple(tensor.shape)
            return Stored(name, tensor.dtype, shape, [Piece((0,) * len(shape), shape, lambda: self.read(name))])

        return [stored(name, tensor) for name, tensor in self._tensors().items()]


def _flat(value: Any, name: str = "", within: Tuple[int, ...] = ()) -> Iterator[Tuple[str, torch.Tensor]]:
    """Yields the tensors of nested dictionaries, by their keys with dots between them."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        yield name, value.detach()
    elif isinstance(value, dict):
        if id(value) in within:
            raise ValueError(f"the dictionary {name} holds itself")
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key), (*within, id(value)))


def _of_layers(tensor: Stored) -> List[Stored]:
    """Returns the tensors of the layers of a tensor with a leading axis of layers, as Megatron-Core writes them: its
    name has no number after "layers."."""
    before, marker, after = tensor.name.partition("layers.")
    if not marker or LAYER.search(tensor.name) or len(tensor.shape) < 2:
        return [tensor]

    def piece(whole: Piece, layer: int) -> Piece:
        return Piece(whole.offsets[1:], whole.sizes[1:], lambda: whole.read()[layer - whole.offsets[0]])

    return [
        Stored(
            f"{before}{marker}{layer}.{after}",
            tensor.dtype,
            tensor.shape[1:],
            [piece(p, layer) for p in tensor.pieces if p.offsets[0] <= layer < p.offsets[0] + p.sizes[0]],
        )
        for layer in range(tensor.shape[0])
    ]


def _without_wrappers(name: str) -> str:
    for wrapper in TABLE["wrappers"]:
        name = name.replace(wrapper, "")
    return name


def _saved_files(folder: pathlib.Path) -> List[pathlib.Path]:
    """Returns the files of torch.save that are one model: pytorch_model*.bin, or the only one of the folder."""
    there = sorted(path for path in folder.iterdir() if path.suffix in SAVED)
    return [path for path in there if re.fullmatch(r"pytorch_model.*\.bin", path.name)] or there


def is_of_trainer(path: pathlib.Path) -> bool:
    """Returns whether read() is for this path: a DCP folder, or a file of torch.save or a folder with some and without
    safetensors."""
    if not path.is_dir():
        return path.suffix in SAVED
    is_dcp = (path / ".metadata").exists() or any(path.glob("*.distcp"))
    return is_dcp or (bool(_saved_files(path)) and not any(path.glob("*.safetensors")))


def _tensors_of(path: pathlib.Path) -> List[Stored]:
    if not path.is_dir():
        return _Saved(path).tensors()
    if (path / ".metadata").exists():
        return list(_Folder(path).tensors())
    if any(path.glob("*.distcp")):
        raise ValueError(
            f"{path}: has shards (.distcp), but no .metadata, which says what is in them: copy that file too"
        )
    files = _saved_files(path)
    inner = sorted(found.parent.name for found in path.glob("*/.metadata"))
    if not files:
        also = f"; name the folder of one: {', '.join(inner[:5])}" if inner else ""
        raise ValueError(f"{path}: has neither .metadata, nor a file ending in {', '.join(SAVED)}{also}")
    if len(files) > 1 and not files[0].name.startswith("pytorch_model"):
        raise ValueError(
            f"{path}: has several files of torch.save ({files[0].name}, {files[1].name}): name the model's"
        )
    return [tensor for file in files for tensor in _Saved(file).tensors()]


def read(path: pathlib.Path) -> Dict[str, Stored]:
    """Returns the tensors of a checkpoint by their names, without those of an optimizer, without the names of wrappers,
    and with an axis of layers as one tensor for each layer. Raises ValueError with a sentence."""
    named = (one._replace(name=_without_wrappers(one.name)) for one in _tensors_of(path))
    return {one.name: one for tensor in named if not OPTIMIZER.match(tensor.name) for one in _of_layers(tensor)}
