"""Processes that ``multiprocessing`` starts afresh ("spawn", "forkserver") below ``precomp run``.

Such a child imports the main program again, under the name ``__mp_main__``. It is prepared, and
strict, as its parent is: the parent names ``precomp.cli.spawned`` as the main program, and that
takes what it needs from the environment. A child that is forked has all of it anyway.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
from typing import Any

from precomp.cli.session import Request, Session

VARIABLE = "PRECOMP_RUN"
MAIN = "precomp.cli.spawned"


def share(request: Request) -> None:
    """Let the children of this process be prepared as *request* says."""
    from multiprocessing import spawn

    preparation_data = spawn.get_preparation_data
    os.environ[VARIABLE] = _describe(request, None, None)

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = preparation_data(name)
        module = data.pop("init_main_from_name", None)
        path = data.pop("init_main_from_path", None)
        os.environ[VARIABLE] = _describe(request, module, path)
        data["init_main_from_name"] = MAIN
        return data

    spawn.get_preparation_data = get_preparation_data


def _describe(request: Request, module: str | None, path: str | None) -> str:
    return json.dumps({"request": dataclasses.asdict(request), "module": module, "path": path})


def main_content() -> dict[str, Any]:
    """In a child: prepare it, then run the main program of the parent; returns its globals."""
    from multiprocessing import util

    facts = json.loads(os.environ[VARIABLE])
    request = Request(**facts["request"] | {"allow": tuple(facts["request"]["allow"])})
    session = Session(request)
    session.start()
    if session.gate is not None:
        # A violation that the child's work swallowed is raised before the child ends.
        util.Finalize(None, session.gate.__exit__, (None, None, None), exitpriority=-1)
    if facts["module"] is not None:
        return runpy.run_module(facts["module"], run_name="__mp_main__", alter_sys=True)
    return runpy.run_path(facts["path"], run_name="__mp_main__") if facts["path"] else {}
