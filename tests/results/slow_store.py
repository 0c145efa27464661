"""An object store on a local folder, whose requests take a while and are counted."""

from __future__ import annotations

import io
import threading
import time
from collections import Counter

import pyarrow as pa
from pyarrow import fs


class SlowStore(fs.FileSystemHandler):
    """Requests as pyarrow makes them of S3: one to open a file and one for each read, one for a small file's write.

    Args:
        seconds: of one request.
    """

    def __init__(self, seconds: float = 0.0):
        self._local = fs.LocalFileSystem()
        self._seconds = seconds
        self._lock = threading.Lock()
        self._now = 0
        self.requests: Counter[str] = Counter()
        self.most_at_once = 0
        self.open_gate = threading.Event()  # writes wait for it
        self.open_gate.set()

    def filesystem(self) -> fs.PyFileSystem:
        return fs.PyFileSystem(self)

    def request(self, kind: str, count: int = 1) -> None:
        with self._lock:
            self.requests[kind] += count
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        time.sleep(self._seconds * count)
        with self._lock:
            self._now -= 1

    def get_type_name(self) -> str:
        return "slow"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        self.request("look", len(paths))
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        found = self._local.get_file_info(selector)
        self.request("list", 1 + len(found) // 1000)
        return found

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._local.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._local.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self.request("delete")
        self._local.delete_file(path)

    def move(self, source: str, to: str) -> None:
        self._local.move(source, to)

    def copy_file(self, source: str, to: str) -> None:
        self._local.copy_file(source, to)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.request("open")
        return pa.PythonFile(_Reader(self, self._local.open_input_file(path)), mode="r")

    def open_output_stream(self, path: str, metadata: dict[str, str]) -> pa.NativeFile:
        return pa.PythonFile(_Writer(self, path), mode="w")

    def open_append_stream(self, path: str, metadata: dict[str, str]) -> pa.NativeFile:
        raise NotImplementedError

    def put(self, path: str, content: bytes) -> None:
        self.open_gate.wait()
        self.request("write")
        self._local.create_dir(path.rpartition("/")[0])
        with self._local.open_output_stream(path) as stream:
            stream.write(content)


class _Reader:
    closed = False

    def __init__(self, store: SlowStore, file: pa.NativeFile):
        self._store, self._file = store, file

    def read(self, size: int = -1) -> bytes:
        self._store.request("read")
        return self._file.read(None if size < 0 else size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()


class _Writer(io.BytesIO):
    def __init__(self, store: SlowStore, path: str):
        super().__init__()
        self._store, self._path = store, path

    def close(self) -> None:
        if not self.closed:
            self._store.put(self._path, self.getvalue())
        super().close()
