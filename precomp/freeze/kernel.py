"""A compiled C++ kernel -> one ``kernel`` entry: the bytes of its stripped shared object."""

from __future__ import annotations

import hashlib

from precomp import _core
from precomp.errors import PrecompError
from precomp.freeze.store import Store, Unsupported


def freeze_kernel(path: str, store: Store) -> str:
    """Store the shared object at *path* and return its digest (hex sha256).

    Debug information and the build id are stripped: they hold the paths of the cache directory,
    so only the stripped bytes are the same for the same kernel. Raises Unsupported when the file
    cannot be read or is not a shared object.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise Unsupported(f"the kernel's file cannot be read: {error}") from error
    try:
        data = _core.strip_shared_object(data)
    except PrecompError as error:
        raise Unsupported(f"the kernel's file is not a shared object: {error}") from error
    digest = hashlib.sha256(data).hexdigest()
    return store.add("kernel", digest, data)
