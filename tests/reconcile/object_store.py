"""A file system in memory that dies at any change, for tests of what a killed process leaves."""

import io
from datetime import UTC, datetime
from itertools import count

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystemHandler, FileType, PyFileSystem

from txmq.reconcile.storage import Folder


class Killed(Exception):
    """The process was killed before a change."""


class Store(FileSystemHandler):
    """Files by path.

    A store of objects has no folders, and a file appears when it is closed. Otherwise a file
    appears empty when it is opened, its folder must exist, and a move replaces no file.
    """

    def __init__(self, *, has_objects):
        self.has_objects = has_objects
        self.files = {}
        self.folders = {""}
        self.now = 1_000
        self.changes = count()
        self.dies_at = None
        self.is_down = False

    def folder(self):
        return Folder(PyFileSystem(self), "b/recon", "s3a://b/recon", has_objects=self.has_objects)

    def data(self):
        """The bytes of each file, without claims."""
        return {path: data for path, (data, _) in self.files.items() if "/claims/" not in path}

    def live(self, *, dies_at=None):
        """Begin a process, long after any other."""
        self.now += 1_000
        self.changes, self.dies_at = count(), dies_at

    def change(self):
        if self.dies_at is not None and next(self.changes) >= self.dies_at:
            raise Killed

    def put(self, path, data):
        self.files[path] = data, self.now

    def get_type_name(self):
        return "store"

    def normalize_path(self, path):
        return path

    def get_file_info(self, paths):
        return [self.info(path) for path in paths]

    def info(self, path):
        self.answer(path)
        assert "" not in path.split("/"), "a store of objects refuses an empty name"
        if path in self.files:
            data, now = self.files[path]
            mtime = datetime.fromtimestamp(now, UTC)
            return FileInfo(path, FileType.File, size=len(data), mtime=mtime)
        is_folder = path in self.folders or any(name.startswith(f"{path}/") for name in self.files)
        return FileInfo(path, FileType.Directory if is_folder else FileType.NotFound)

    def get_file_info_selector(self, selector):
        base = f"{selector.base_dir}/"
        names = [path for path in self.files if path.startswith(base)]
        if selector.recursive:
            return [self.info(path) for path in names]
        below = {base + path.removeprefix(base).partition("/")[0] for path in names}
        return [self.info(path) for path in sorted(below)]

    def create_dir(self, path, recursive):
        assert recursive
        assert not self.has_objects
        parts = path.split("/")
        self.folders |= {"/".join(parts[:number]) for number in range(1, len(parts) + 1)}

    def delete_dir(self, path):
        if self.info(path).type == FileType.NotFound:
            raise FileNotFoundError(path)
        for name in [name for name in self.files if name.startswith(f"{path}/")]:
            self.change()
            del self.files[name]
        self.folders = {name for name in self.folders if not f"{name}/".startswith(f"{path}/")}

    def delete_file(self, path):
        if path not in self.files:
            raise FileNotFoundError(path)
        self.change()
        del self.files[path]

    def move(self, path, new):
        if not self.has_objects:
            assert new not in self.files, "a move replaces nothing"
            self.enter(new)
            self.change()
            self.files[new] = self.files.pop(path)
            return
        self.change()
        self.put(new, self.files[path][0])
        self.change()
        del self.files[path]

    def enter(self, path):
        assert path.rpartition("/")[0] in self.folders, "its folder does not exist"

    def answer(self, path):
        if self.is_down:
            raise OSError(f"AWS Error UNKNOWN (HTTP status 503) for {path}")

    def open_input_file(self, path):
        self.answer(path)
        if path not in self.files:
            raise FileNotFoundError(f"{path}: No such file")
        return pa.PythonFile(io.BytesIO(self.files[path][0]), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path, metadata):
        self.change()
        if not self.has_objects:
            self.enter(path)
            self.put(path, b"")
        return pa.PythonFile(_Written(self, path), mode="w")

    delete_dir_contents = delete_root_dir_contents = copy_file = open_append_stream = None


class _Written(io.BytesIO):
    def __init__(self, store, path):
        super().__init__()
        self.store, self.path = store, path

    def close(self):
        if not self.closed:
            data = self.getvalue()
            super().close()
            self.store.change()
            self.store.put(self.path, data)
