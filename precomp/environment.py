"""What compiled code depends on, as a flat record, and its comparison.

Paths, host names, HOME, environment variables and device ordinals are not part of it.
"""

from __future__ import annotations

import importlib.util
import platform
import sys

from precomp.errors import CudaError, EnvironmentMismatchError

# Compared by Prepared only as a warning: the program may still set it before its first step.
SETTABLE = ("threads",)
# Between values of which any one will do: "2 or 8".
OR = " or "

# Raised with a change after which a reader misunderstands older records (docs/internals.md).
RECORDS = "2"

_WHY = {
    "records": "another version of precomp wrote them",
    "torch": "the frozen code uses private interfaces of exactly this build",
    "torch_commit": "the frozen code uses private interfaces of exactly this build",
    "python": "bytecode and extension modules belong to one Python version",
    "bytecode": "bytecode belongs to one Python version",
    "machine": "kernels are machine code",
    "gpu": "kernels are machine code of one GPU architecture",
    "cpu_capability": "kernels use the vector instructions of the CPU they were built for",
}


def current() -> dict[str, str]:
    """The environment record of this process: str -> str."""
    import torch

    return {
        "records": RECORDS,
        "torch": str(torch.__version__),
        "torch_commit": str(torch.version.git_version),
        "python": f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}",
        "bytecode": importlib.util.MAGIC_NUMBER.hex(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }


def gpus() -> dict[str, str]:
    """The field that artifacts with kernels for GPUs have, too: the architectures in this machine.

    Reads them from the driver, without making a context. The value says so when there is no driver.
    """
    from precomp import _core

    try:
        devices = _core.cuda_devices()
    except CudaError as error:
        return {"gpu": f"none: {error}"}
    found = {f"sm_{major}{minor}" for major, minor in devices}
    return {"gpu": OR.join(sorted(found)) or "none: the driver shows no device"}


def differences(
    expected: dict[str, str], found: dict[str, str]
) -> tuple[tuple[str, str, str], ...]:
    """``(field, expected, found)`` of every field that must match and does not."""
    return tuple(
        (field, expected.get(field, "nothing"), found.get(field, "nothing"))
        for field in sorted(expected.keys() | found.keys())
        if field not in SETTABLE and not _agree(field, expected.get(field), found.get(field))
    )


def _agree(field: str, expected: str | None, found: str | None) -> bool:
    if field == "gpu" and expected is not None and found is not None:
        return not set(expected.split(OR)).isdisjoint(found.split(OR))
    return expected == found


def require_match(path: str, expected: dict[str, str], found: dict[str, str]) -> None:
    """Raise EnvironmentMismatchError that lists all differences at once."""
    rows = differences(expected, found)
    if rows:
        lines = "".join(
            f"\n  {field}: expected {want}, found {have}"
            + (f" ({_WHY[field]})" if field in _WHY else "")
            for field, want, have in rows
        )
        raise EnvironmentMismatchError(
            f"{path}: captured in another environment:{lines}\n"
            "Capture again in this environment, or run where it was captured.",
            rows,
        )


def warnings(expected: dict[str, str], found: dict[str, str]) -> tuple[str, ...]:
    """Differences that a program may still remove before its first step.

    A merged artifact lists the values of its parts: ``"2 or 8"``. Each of them is as good.
    """
    captured = expected.get("threads")
    if captured is None or found.get("threads") in captured.split(OR):
        return ()
    return (
        f"captured with torch.get_num_threads() == {captured}, this process has "
        f"{found.get('threads')}: torch guards on it, so no frame is served until "
        "torch.set_num_threads or OMP_NUM_THREADS makes them equal",
    )
