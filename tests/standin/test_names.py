"""Everything that the tables of precomp.torch_api say of the installed torch."""

from __future__ import annotations

from typing import Any

NAMES = """
import importlib, json
from precomp import torch_api
from precomp.errors import PrecompError
from precomp.freeze import helpers
from precomp.freeze.guards import GuardRecorder

tables = torch_api.tables()
wrong = []

def check(what, work):
    try:
        work()
    except (ImportError, AttributeError, PrecompError) as error:
        wrong.append(f"{what}: {error}")

for get in (torch_api.serve, torch_api.capture, torch_api.compiler):
    check(get.__name__, get)
check("written", helpers.check_written)
for module in sorted(tables.STANDIN_ALONE | tables.STANDIN_LISTED):
    check(module, lambda: importlib.import_module(module))
for module, names in tables.STANDIN_TAKE.items():
    for name in names:
        check("take", lambda: helpers._record(module, name))
for module, lines in tables.STANDIN_SETUP.items():
    for line in lines:
        check("setup", lambda: helpers._setup(module, line))
for module, names in tables.STANDIN_BESIDE.items():
    for name in names:
        check("beside", lambda: importlib.import_module(f"{module}.{name}"))
for name, module in tables.STANDIN_TOP.items():
    check("top", lambda: getattr(importlib.import_module(module), name))
    check("top", lambda: getattr(importlib.import_module("torch._dynamo"), name))

import inspect
from torch._functorch._aot_autograd import schemas

for table, cls in (
    (tables.METADATA_REFUSED, schemas.ViewAndMutationMeta),
    (tables.INPUT_REFUSED, schemas.InputAliasInfo),
    ({tables.TANGENT_FIELD}, schemas.OutputAliasInfo),
):
    source = inspect.getsource(cls)
    wrong += [f"{cls.__name__}.{name}" for name in table if name not in source]

native = importlib.import_module("torch._C._dynamo.guards")
classes = (native.GuardManager, native.DictGuardManager, native.RootGuardManager)
check("guards", lambda: GuardRecorder._refuse_unknown(classes, torch_api.capture().guards_module))
print(json.dumps(wrong))
"""


def test_the_installed_torch_has_what_its_tables_name(torch_process: Any) -> None:
    assert torch_process.python("-W", "ignore", "-c", NAMES).splitlines()[-1] == "[]"
