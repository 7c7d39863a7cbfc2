"""Several processes of one job that run the same command: torchrun and the like."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from precomp.errors import PrecompError


def ranked(path: str) -> str:
    """*path* made absolute (the script may change the directory), with the rank for ``{rank}``."""
    return os.path.abspath(path.replace("{rank}", os.environ.get("RANK", "0")))


def capture_target(out: str) -> tuple[str, bool]:
    """``(file, together)``: where this process captures into, and whether it writes that file
    together with the other ranks. Raises PrecompError when the file could not be written."""
    path = ranked(out)
    directory = os.path.dirname(path)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PrecompError(f"--capture {out}: no directory {directory} that can be written to")
    return path, "{rank}" not in out and os.environ.get("WORLD_SIZE", "1") != "1"


class KeptGroup:
    """Keeps the default process group of torch.distributed to the end of the run: the ranks write
    their artifact through its store, and programs destroy it as the last thing they do."""

    def __init__(self) -> None:
        self._destroy: Callable[[], None] | None = None

    def keep(self) -> None:
        """From now on the program's destroy_process_group() waits for ``release``."""
        import torch.distributed as dist

        if not dist.is_available():
            return
        from torch.distributed import distributed_c10d

        original = distributed_c10d.destroy_process_group

        def destroy_process_group(group: Any = None) -> None:
            if dist.is_initialized() and group in (None, dist.group.WORLD):
                self._destroy = original
            else:
                original(group)

        distributed_c10d.destroy_process_group = destroy_process_group
        dist.destroy_process_group = destroy_process_group

    def require(self, path: str) -> None:
        """Raise PrecompError when there is no group through which *path* could be written."""
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise PrecompError(
                f"{path} was not written: {os.environ['WORLD_SIZE']} processes would write it, and "
                "the script made no process group; put {rank} into the name and merge the files "
                "(precomp merge)"
            )

    def release(self) -> None:
        """Destroy the group now if the program wanted it."""
        destroy, self._destroy = self._destroy, None
        if destroy is not None:
            destroy()
