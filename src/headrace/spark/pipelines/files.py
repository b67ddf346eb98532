"""Files of a table, wherever Spark can write them (Hadoop's file systems), and the swap of two directories."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.runtime.system import exchange
from headrace.spark.pipelines.declaring import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTED_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file's path below the table's, and its size."""

    path: str
    size: int
    modified_ms: int


class Files:
    """A directory of a file system that Spark knows. Paths are relative to it."""

    def __init__(self, session: SparkSession, root: str) -> None:
        jvm: Any = session._jvm
        self._jvm = jvm
        path = jvm.org.apache.hadoop.fs.Path(root)
        self._fs: Any = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
        self.root = str(self._fs.makeQualified(path).toString()).rstrip("/")

    @property
    def local(self) -> str | None:
        """The directory's name on this machine; None when it is elsewhere."""
        parts = urlsplit(self.root)
        return unquote(parts.path) if parts.scheme == "file" else None

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._at(path)))

    def listed(self, path: str, suffix: str = ".parquet") -> list[TableFile]:
        """The files below a directory, in order; none when it is not there."""
        if not self.exists(path):
            return []
        found: list[TableFile] = []
        files = self._fs.listFiles(self._at(path), True)
        while files.hasNext():
            status = files.next()
            name = str(status.getPath().toString()).removeprefix(self.root).lstrip("/")
            if name.endswith(suffix):
                found.append(TableFile(name, int(status.getLen()), int(status.getModificationTime())))
            if len(found) > _LISTED_MAX:
                raise PipelineError(f"{self.url(path)} has more than {_LISTED_MAX:,} files")
        return sorted(found, key=lambda one: one.path)

    def names(self, path: str) -> list[str]:
        """What is in a directory."""
        if not self.exists(path):
            return []
        return sorted(str(one.getPath().getName()) for one in self._fs.listStatus(self._at(path)))

    def make(self, path: str) -> None:
        self._fs.mkdirs(self._at(path))

    def delete(self, path: str) -> None:
        self._fs.delete(self._at(path), True)

    def rename(self, path: str, to: str) -> None:
        """Move a file to a place where there is none."""
        if not self._fs.rename(self._at(path), self._at(to)):
            raise PipelineError(f"{self.url(path)} could not be moved to {self.url(to)}")

    def read(self, path: str) -> str | None:
        if not self.exists(path):
            return None
        stream = self._fs.open(self._at(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def create(self, path: str, text: str) -> bool:
        """A file that is there whole, or not at all; whether it was made, and not there already.

        On this machine one system call decides. Elsewhere it is a rename that refuses to replace a file, as HDFS does.
        """
        aside = f"{path}.{uuid.uuid4().hex[:8]}.new"
        stream = self._fs.create(self._at(aside), False)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        try:
            if self.local is not None:
                # Hadoop's rename would replace what is there.
                os.link(f"{self.local}/{aside}", f"{self.local}/{path}")
                return True
            return not self.exists(path) and bool(self._fs.rename(self._at(aside), self._at(path)))
        except FileExistsError:
            return False
        finally:
            self.delete(aside)

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[bool]:
        """Hold a lock file of this machine, if nobody else does; the system lets go of it when the process is gone."""
        handle = os.open(f"{self.local}/{path}", os.O_CREAT | os.O_RDWR, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)

    def exchange(self, path: str, other: str) -> None:
        """Swap two directories in one step: whoever lists one sees the one content or the other, never neither."""
        assert self.local is not None
        try:
            exchange(f"{self.local}/{path}", f"{self.local}/{other}")
        except OSError as error:
            raise PipelineError(f"{self.url(path)} cannot be swapped on this file system: {error.strerror}") from error

    def link(self, path: str, to: str) -> None:
        """A second name for a file of this machine."""
        os.link(f"{self.local}/{path}", f"{self.local}/{to}")

    def _at(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.url(path) if path else self.root)
