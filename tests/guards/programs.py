"""Programs whose guards are recorded in one process and rebuilt in another.

Importing this module must not import torch's compiler. Each program is a function that gives a
:class:`Program`; ``variations`` lists changes of state or arguments under which the guards have to
decide. What they have to decide is asked from torch in the recording process.
"""

from __future__ import annotations

import programs_arguments  # noqa: F401 - each part adds its programs
import programs_functions  # noqa: F401
import programs_live  # noqa: F401
import programs_modes  # noqa: F401
import programs_modules  # noqa: F401
import programs_rare  # noqa: F401
import programs_shapes  # noqa: F401
import programs_subclasses  # noqa: F401
from program_base import PROGRAMS, Program
from programs_arguments import plain
from programs_modes import vmapped
from programs_modules import MLP, copied_config
from torches import OLD

if OLD:
    # Refused there, but for "decorated": Dynamo compiles no frame of its own for it.
    for missing in (
        "decorated",
        "dispatch_keys",
        "dtensor",
        "jagged",
        "live_objects",
        "mesh_argument",
        "opaque_object",
    ):
        del PROGRAMS[missing]

__all__ = ["MLP", "PROGRAMS", "Program", "copied_config", "plain", "vmapped"]
