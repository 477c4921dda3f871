"""The tensors of a file that torch.save wrote, without torch and without running code from it.

A file is a zip archive with a pickle (NAME/data.pkl) and the bytes of each storage (NAME/data/KEY), or, before torch 1.6,
successive pickles followed by the storages. The pickle may build dictionaries, lists, numbers and texts, and name the
few functions below, which make tensors; any other name is refused and never looked up.
"""
import collections
import io
import math
import mmap
import pickle
import struct
import zipfile

import numpy as np

# torch's storage classes and dtypes: safetensors' name, bytes of an element. For a dtype that safetensors does not have,
# the name is None.
STORAGES = {"DoubleStorage": ("F64", 8), "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2),
            "BFloat16Storage": ("BF16", 2), "LongStorage": ("I64", 8), "IntStorage": ("I32", 4), "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1),
            "ByteStorage": ("U8", 1), "BoolStorage": ("BOOL", 1), "ComplexFloatStorage": (None, 8),
            "ComplexDoubleStorage": (None, 16)}
LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950a86a20f9469cfc6c, 1001


class Refused(Exception):
    """The fault of a file."""


class Storage:
    def __init__(self, kind, key, elements):
        self.kind, self.key, self.elements = kind, key, elements
        self.dtype, self.size = STORAGES[kind]
        self.data = None                   # a view of the file, set when the position is known


class Tensor:
    """Elements of a storage; dtype is safetensors' name, or None if it has none."""

    def __init__(self, storage, offset, shape, stride):
        self.storage, self.offset, self.shape, self.stride = storage, offset, tuple(shape), tuple(stride)
        self.dtype = storage.dtype

    def check(self):
        whole = [self.offset, *self.shape, *self.stride]
        if len(self.shape) != len(self.stride) or any(type(n) is not int or n < 0 for n in whole):
            raise Refused(f"a tensor has the shape {self.shape}, strides {self.stride} and offset {self.offset}")
        if math.prod(self.shape) > max(self.storage.elements, 1 << 28):
            raise Refused(f"a tensor of shape {self.shape} repeats a storage of {self.storage.elements} elements")
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride))
        if 0 not in self.shape and last >= self.storage.elements:
            raise Refused(f"a tensor reaches to element {last} of a storage of {self.storage.elements}")

    def elements(self):
        """The elements in order, as unsigned integers of their size; copied only if they are not contiguous."""
        size = self.storage.size
        if 0 in self.shape:
            return np.empty(self.shape, f"u{size}")
        flat = np.frombuffer(self.storage.data, f"<u{size}", self.storage.elements)
        strides = [step * size for step in self.stride]
        view = np.lib.stride_tricks.as_strided(flat[self.offset:], self.shape, strides, writeable=False)
        return np.ascontiguousarray(view)


def rebuild_tensor(storage, offset, shape, stride, *_):
    if not isinstance(storage, Storage):
        raise Refused("a tensor without a storage")
    tensor = Tensor(storage, offset, shape, stride)
    tensor.check()
    return tensor


def rebuild_parameter(tensor, *_):
    return tensor


ALLOWED = {("collections", "OrderedDict"): collections.OrderedDict,
           ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
           ("torch._utils", "_rebuild_tensor"): rebuild_tensor,
           ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
           ("torch", "Size"): tuple}


class Kind(str):
    """The name of a storage class."""


class Unpickler(pickle.Unpickler):
    def __init__(self, file):
        super().__init__(file, encoding="utf-8")
        self.storages = {}

    def find_class(self, module, name):
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        if module == "torch" and name in STORAGES:
            return Kind(name)
        raise Refused(f"it names {module}.{name}, which is no part of a tensor")

    def persistent_load(self, pid):
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], Kind):
            raise Refused(f"it refers to {str(pid)[:80]}, which is no storage")
        kind, key, elements = pid[1], str(pid[2]), pid[4]
        if len(pid) > 5 and pid[5] is not None:
            raise Refused("a storage is part of another, as only very old versions of torch wrote them")
        if type(elements) is not int or elements < 0:
            raise Refused(f"a storage has {elements} elements")
        storage = self.storages.setdefault(key, Storage(kind, key, elements))
        if (storage.kind, storage.elements) != (kind, elements):
            raise Refused(f"storage {key} has two descriptions")
        return storage


def load(path):
    """The content of the file: tensors within dictionaries, lists, numbers and texts. Its bytes are mapped, not read. Raises
    Refused or OSError."""
    with open(path, "rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise Refused("it is empty") from None
    try:
        return read_zip(path, mapped) if mapped[:4] == b"PK\x03\x04" else read_legacy(mapped)
    except Refused:
        raise
    except Exception as error:             # errors of broken pickles and archives have no common class
        raise Refused(f"it is broken, or no file of torch: {type(error).__name__}: {error}") from None


def member_bytes(whole, info):
    """The offset of this member in the archive, which torch does not compress."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise Refused(f"{info.filename} is compressed, which torch does not do")
    signature, name, extra = struct.unpack_from("<4s22xHH", whole, info.header_offset)
    begin = info.header_offset + 30 + name + extra
    if signature != b"PK\x03\x04" or begin + info.file_size > len(whole):
        raise Refused(f"{info.filename} is cut short")
    return whole[begin:begin + info.file_size]


def read_zip(path, mapped):
    whole = memoryview(mapped)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise Refused("the archive has no data.pkl, as torch.save writes it")
    folder = pickles[0][:-len("data.pkl")]
    if folder + "byteorder" in members and bytes(member_bytes(whole, members[folder + "byteorder"])) != b"little":
        raise Refused("its numbers are big-endian; save it again on a little-endian machine")
    unpickler = Unpickler(io.BytesIO(member_bytes(whole, members[pickles[0]])))
    result = unpickler.load()
    for key, storage in unpickler.storages.items():
        name = f"{folder}data/{key}"
        if name not in members:
            raise Refused(f"the archive lacks {name}")
        storage.data = member_bytes(whole, members[name])
        if len(storage.data) != storage.elements * storage.size:
            raise Refused(f"{name}: found {len(storage.data)} bytes, expected {storage.elements} elements of {storage.size}")
    return result


def read_legacy(mapped):
    whole = memoryview(mapped)

    def plain():
        return Unpickler(mapped).load()
    if plain() != LEGACY_MAGIC or plain() != LEGACY_PROTOCOL:
        raise Refused("it does not begin as a file of torch")
    if not plain().get("little_endian", True):
        raise Refused("its numbers are big-endian; save it again on a little-endian machine")
    unpickler = Unpickler(mapped)
    result = unpickler.load()
    at = None
    for key in plain():
        storage = unpickler.storages[str(key)]
        at = mapped.tell() if at is None else at
        elements, = struct.unpack_from("<q", whole, at)
        end = at + 8 + storage.elements * storage.size
        if elements != storage.elements or end > len(whole):
            raise Refused(f"storage {key}: found {elements} elements, expected {storage.elements}, or the file is cut short")
        storage.data, at = whole[at + 8:end], end
    if any(storage.data is None for storage in unpickler.storages.values()):
        raise Refused("a storage's bytes are missing")
    return result
