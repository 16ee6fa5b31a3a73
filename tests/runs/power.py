"""A disk that loses its power: what a process changed and did not sync may be there or not.

A process runs with `power.c` loaded before the C library, which writes down every change below a
folder. `Disk` takes these changes one by one, and `lose_power` writes what a disk may then hold:
of everything that was not synced, the old or the new, each file and each name on its own.
"""

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

HEADER = struct.Struct("<IIIQQQ")


class Kind(IntEnum):
    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    RENAME = 4
    LINK = 5
    UNLINK = 6
    MAKE_FOLDER = 7
    REMOVE_FOLDER = 8
    SYNC = 9


@dataclass
class Change:
    kind: Kind
    first: str
    second: str
    inode: int
    offset: int
    data: bytes


@dataclass(eq=False)
class File:
    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""

    def sync(self) -> None:
        self.synced = bytes(self.now)


@dataclass(eq=False)
class Folder:
    now: "dict[str, File | Folder]" = field(default_factory=dict)
    synced: "dict[str, File | Folder]" = field(default_factory=dict)

    def sync(self) -> None:
        self.synced = dict(self.now)


def build(folder: Path) -> Path | None:
    """The library, or None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "power.so"
    source = Path(__file__).with_name("power.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def environment(library: Path, root: Path, log: Path) -> dict[str, str]:
    """What a process needs to be recorded."""
    names = {"LD_PRELOAD": library, "NATPINN_POWER_ROOT": root, "NATPINN_POWER_LOG": log}
    return os.environ | {name: str(value) for name, value in names.items()}


def changes(log: Path) -> Iterator[Change]:
    content, at = log.read_bytes(), 0
    while at < len(content):
        kind, first, second, inode, offset, length = HEADER.unpack_from(content, at)
        at += HEADER.size
        names = (
            content[at : at + first].decode(),
            content[at + first : at + first + second].decode(),
        )
        at += first + second
        size = length if kind == Kind.WRITE else 0
        yield Change(Kind(kind), *names, inode, offset, content[at : at + size])
        at += size


class Disk:
    """The folder `root` as a process sees it, and as it was last synced."""

    def __init__(self, root: Path):
        self.root, self.top = root, Folder()
        self.nodes: dict[int, File | Folder] = {root.stat().st_ino: self.top}

    def take(self, change: Change) -> None:
        kind = change.kind
        if kind in (Kind.CREATE, Kind.MAKE_FOLDER):
            node = File() if kind is Kind.CREATE else Folder()
            self.nodes[change.inode] = node
            self._put(change.first, node)
        elif kind in (Kind.UNLINK, Kind.REMOVE_FOLDER):
            parent, name = self._place(change.first)
            del parent.now[name]
        elif kind is Kind.RENAME:
            parent, name = self._place(change.first)
            self._put(change.second, parent.now.pop(name))
        elif kind is Kind.LINK:
            self._put(change.first, self.nodes[change.inode])
        elif kind is Kind.SYNC:
            self.nodes[change.inode].sync()
        else:
            file = self.nodes[change.inode]
            assert isinstance(file, File)
            if kind is Kind.TRUNCATE:
                del file.now[change.offset :]
                file.now.extend(bytes(change.offset - len(file.now)))
            else:
                end = change.offset + len(change.data)
                file.now.extend(bytes(max(0, end - len(file.now))))
                file.now[change.offset : end] = change.data

    def write(self, path: Path) -> None:
        """Write all as the process sees it."""
        _write(self.top, path, lambda node: node.now)

    def lose_power(self, path: Path, draw: random.Random) -> None:
        """Write what may be left."""
        keeps = draw.choice([0.0, 0.0, 0.5, 1.0])  # how much of what was not synced

        def left(node: File | Folder) -> object:
            if isinstance(node, File):
                if bytes(node.now) == node.synced or draw.random() >= keeps:
                    return node.synced
                end = draw.choice([len(node.now), draw.randint(0, len(node.now))])
                return bytes(node.now[:end]) + node.synced[end:]
            found = {}
            for name in {*node.now, *node.synced}:
                entry = (node.now if draw.random() < keeps else node.synced).get(name)
                if entry is not None:
                    found[name] = entry
            return found

        _write(self.top, path, left)

    def find(self, *names: str) -> "dict[str, File | Folder]":
        """What is in a folder for sure; nothing, where the folder itself is not."""
        node = self.top
        for name in names:
            inner = node.synced.get(name)
            if not isinstance(inner, Folder):
                return {}
            node = inner
        return node.synced

    def _place(self, path: str) -> tuple[Folder, str]:
        *folders, name = Path(path).relative_to(self.root).parts
        node = self.top
        for folder in folders:
            inner = node.now[folder]
            assert isinstance(inner, Folder)
            node = inner
        return node, name

    def _put(self, path: str, node: File | Folder) -> None:
        parent, name = self._place(path)
        parent.now[name] = node


def is_synced(node: File | Folder) -> bool:
    """Whether a file or a folder with all that is in it is on the disk as the process sees it."""
    if isinstance(node, File):
        return bytes(node.now) == node.synced
    return node.now == node.synced and all(map(is_synced, node.now.values()))


def _write(node, path, content) -> None:
    if isinstance(node, File):
        path.write_bytes(bytes(content(node)))
        return
    path.mkdir()
    for name, inner in content(node).items():
        _write(inner, path / name, content)
