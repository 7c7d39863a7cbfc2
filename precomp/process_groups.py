"""The ranks and process groups of this process, for compiled code that depends on them.

Dynamo makes constants of what a function asks of process groups and device meshes: the rank, the
number of ranks, the name of a group for a collective. No guard of torch protects them. Frames that
asked are served where the answers are the same (``"ranks"`` of a frame record).
"""

from __future__ import annotations

from typing import Any

from precomp import _core
from precomp.torch_api import objects

# () outside of a process group; else the rank, the number of ranks, and each group that the rank
# belongs to: its name and the ranks in it.
Layout = tuple[Any, ...]


def layout() -> Layout:
    """The process groups of this process."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return ()
    return dist.get_rank(), dist.get_world_size(), tuple(sorted(objects.process_groups()))


def check(captured: Layout | None) -> None:
    """Raise ``_core.Stale`` unless the answers are those of *captured*; None: nothing was asked.

    Groups that are not among them do not matter.
    """
    if captured is None:
        return
    here = layout()
    if captured[:2] != here[:2]:
        raise _core.Stale(
            f"it depends on ranks: captured {_place(captured)}, this is {_place(here)}"
        )
    if captured:
        groups = dict(here[2])
        for name, ranks in captured[2]:
            if groups.get(name) != ranks:
                now = f"has the ranks {groups[name]}" if name in groups else "is not there"
                raise _core.Stale(
                    f"it depends on ranks: process group {name!r} had the ranks {ranks}, {now}"
                )


def _place(groups: Layout) -> str:
    return f"on rank {groups[0]} of {groups[1]}" if groups else "outside of a process group"
