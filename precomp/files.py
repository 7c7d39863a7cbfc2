"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import Any, BinaryIO


class Replacement:
    """A new file beside *path* that takes its place when all went well, and is gone else."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.directory = os.path.dirname(path) or "."
        self.name = os.path.join(self.directory, f".precomp-{secrets.token_hex(8)}.tmp")

    def __enter__(self) -> BinaryIO:
        mode = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self.file = open(os.open(self.name, mode, 0o666), "w+b")
        except OSError as error:
            raise type(error)(error.errno, error.strerror, self.path) from None
        return self.file

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self.file.flush()
                os.fsync(self.file.fileno())
                os.replace(self.name, self.path)
                directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(directory)
                finally:
                    os.close(directory)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(self.name)
            self.file.close()  # last: it writes what is left, which can fail once more
