"""How the stand-in appears, becomes real and goes away. Each function runs in its own process
(driver.py), with the stand-in installed unless its name starts with ``bare_``."""

from __future__ import annotations

import builtins
import gc
import importlib
import importlib.util
import os
import sys
import threading
import types
from typing import Any

import torch

from precomp import data, torch_api
from precomp.serve import standin


def helpers() -> Any:
    with open(os.environ["HELPERS"], "rb") as file:
        return data.loads(file.read())


def one_object_each() -> None:
    """Each compiler module exists once, and its parent's attribute is that object."""
    found: dict[str, set[int]] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), types.ModuleType):
            name = thing.__name__
            if name.startswith(("torch._dynamo", "torch._inductor")):
                found.setdefault(name, set()).add(id(thing))
    assert "torch._dynamo.eval_frame" in found
    assert {name: len(ids) for name, ids in found.items() if len(ids) > 1} == {}
    for name in found:
        module = sys.modules[name]
        parent, _, child = name.rpartition(".")
        attribute = getattr(sys.modules[parent], child)
        assert attribute is module or not isinstance(attribute, types.ModuleType), name
        assert module.__spec__ is not None and module.__spec__.name == name
        assert type(module.__spec__.loader).__module__ != "precomp.serve.standin_engine", name
        assert not getattr(module.__spec__, "_initializing", False), name
        own = vars(module).get("__getattr__")
        assert own is None or own.__module__ == name, name


def works() -> None:
    """The real compiler does its work."""
    f = torch.compile(lambda x: {"a": x.sin() + 1}["a"], backend="eager")
    assert torch.equal(f(torch.ones(2)), torch.ones(2).sin() + 1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    torch._dynamo.reset()


def check(trigger: Any, why: str) -> None:
    """*trigger* makes an existing stand-in real in place."""
    import torch._dynamo
    import torch._dynamo.utils

    dynamo, utils = torch._dynamo, torch._dynamo.utils
    hidden = torch._dynamo.eval_frame
    disable = torch._dynamo.disable
    assert not standin.is_real()
    trigger()
    assert standin.is_real()
    assert standin.materialized_by() == why
    assert sys.modules["torch._dynamo"] is dynamo is torch._dynamo
    assert sys.modules["torch._dynamo.utils"] is utils
    assert sys.modules["torch._dynamo.eval_frame"] is hidden
    assert disable is not torch._dynamo.disable
    assert disable(lambda: 3)() == 3
    one_object_each()
    works()


def by_attribute() -> None:
    check(lambda: torch._dynamo.reset, "torch._dynamo.reset")


def by_attribute_of_submodule() -> None:
    check(lambda: torch._dynamo.utils.counters, "torch._dynamo.utils.counters")


def by_attribute_of_hidden_submodule() -> None:
    check(lambda: torch._dynamo.eval_frame.export, "torch._dynamo.eval_frame.export")


def by_submodule_import() -> None:
    check(lambda: importlib.import_module("torch._dynamo.guards"), "torch._dynamo.guards")


def by_deep_import() -> None:
    check(
        lambda: importlib.import_module("torch._dynamo.variables.builder"),
        "torch._dynamo.variables",
    )


def by_import_of_hidden_submodule() -> None:
    check(lambda: importlib.import_module("torch._dynamo.eval_frame"), "torch._dynamo.eval_frame")


def by_from_import() -> None:
    def trigger() -> None:
        from torch._dynamo import optimize

        assert optimize.__module__ == "torch._dynamo.eval_frame"

    check(trigger, "torch._dynamo.optimize")


def by_from_import_of_submodule() -> None:
    def trigger() -> None:
        from torch._dynamo import guards

        assert guards is sys.modules["torch._dynamo.guards"]

    check(trigger, "torch._dynamo.guards")


def by_star_import() -> None:
    def trigger() -> None:
        space: dict[str, Any] = {}
        exec("from torch._dynamo import *", space)
        assert "export" in space and "OptimizedModule" in space

    check(trigger, "torch._dynamo.__all__")


def by_reload() -> None:
    def trigger() -> None:
        importlib.reload(torch._dynamo)

    check(trigger, "reload")


def by_find_spec() -> None:
    def trigger() -> None:
        spec = importlib.util.find_spec("torch._dynamo.guards")
        assert spec is not None
        assert importlib.import_module("torch._dynamo.guards").GuardBuilder

    check(trigger, "torch._dynamo.guards")


def by_compile() -> None:
    check(lambda: torch.compile(lambda x: x, backend="eager")(1), "torch._dynamo.backends")


def by_inductor() -> None:
    def trigger() -> None:
        import torch._inductor.config

        inductor, config = torch._inductor, torch._inductor.config
        assert "torch._inductor.compile_fx" not in sys.modules
        config.max_autotune = True
        assert torch._inductor.list_mode_options()
        assert sys.modules["torch._inductor"] is inductor is torch._inductor
        assert sys.modules["torch._inductor.config"] is config
        assert torch._inductor.config.max_autotune

    check(trigger, "torch._inductor.list_mode_options")


def bare_before_any_import() -> None:
    """The first import of all is of a submodule that is not offered."""
    standin.install(helpers())
    importlib.import_module("torch._dynamo.guards")
    assert standin.is_real() and standin.materialized_by() == "torch._dynamo.guards"
    one_object_each()
    works()


def by_call() -> None:
    check(lambda: standin.materialize("a test"), "a test")


def bare_materialize_without_stand_in() -> None:
    standin.install(helpers())
    standin.materialize("nobody imported it")
    assert standin.is_real() and standin.materialized_by() == "nobody imported it"
    one_object_each()


def bare_materialize_without_install() -> None:
    standin.materialize("x")
    assert standin.is_real() and standin.materialized_by() is None
    works()


def by_many_threads() -> None:
    """Different triggers at once: all see the finished package, nothing dead-locks or fails."""
    triggers = [
        "import torch._dynamo.guards as m; m.GuardBuilder",
        "import torch; torch._dynamo.reset",
        "from torch._dynamo import optimize",
        "import torch._dynamo.utils as m; m.counters",
        "from torch._dynamo.variables import builder",
        "import torch._dynamo.eval_frame as m; m.optimize",
        "from torch._dynamo.utils import dynamo_timed",
        "import torch._dynamo.decorators as m; m.comptime",
        "import torch._inductor.config as c; c.max_autotune",
        "import torch._dynamo.polyfills as p; p.loader",
        "import torch; torch._dynamo.config.verbose",
        "from torch._dynamo import *",
    ] * 2

    def trigger() -> None:
        barrier = threading.Barrier(len(triggers))
        errors: list[str] = []

        def run(text: str) -> None:
            barrier.wait()
            try:
                exec(text, {})
            except BaseException as error:  # noqa: BLE001 - collected
                errors.append(f"{text}: {error!r}")

        threads = [threading.Thread(target=run, args=(text,)) for text in triggers]
        old = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(old)
        assert not errors, errors

    importlib.import_module("torch._dynamo.utils")
    trigger()
    assert standin.is_real()
    one_object_each()
    works()


def while_a_submodule_is_imported_elsewhere() -> None:
    """One thread holds the import lock of a module that the other needs to become real."""
    inside, go_on = threading.Event(), threading.Event()
    name = "torch._dynamo.comptime"
    errors: list[BaseException] = []

    class Slow:
        def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
            if fullname == name and threading.current_thread() is not threading.main_thread():
                inside.set()
                go_on.wait(10)

    def run() -> None:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - collected
            errors.append(error)

    import torch._dynamo

    sys.meta_path.insert(0, Slow())
    other = threading.Thread(target=run)
    other.start()
    assert inside.wait(10)
    threading.Timer(0.2, go_on.set).start()
    assert torch._dynamo.reset
    other.join()
    assert not errors, errors and standin.is_real()
    del sys.meta_path[0]
    one_object_each()
    works()


def after_a_failure() -> None:
    """If the real package cannot be imported, the stand-in goes on; the next try may succeed."""
    import torch._dynamo.utils

    dynamo, utils = torch._dynamo, torch._dynamo.utils

    class Broken:
        def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
            if fullname == "torch._dynamo.symbolic_convert":
                raise ImportError("broken on purpose")

    sys.meta_path.insert(0, Broken())
    for _ in range(2):
        try:
            torch._dynamo.reset()
        except ImportError as error:
            assert "broken on purpose" in str(error)
        else:
            raise AssertionError("no error")
        assert not standin.is_real() and standin.materialized_by() is None
        assert sys.modules["torch._dynamo"] is dynamo and torch._dynamo.utils is utils
        assert torch._dynamo.disable(lambda: 5)() == 5
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
        optimizer.step()
    del sys.meta_path[0]
    torch._dynamo.reset()
    assert standin.materialized_by() == "torch._dynamo.reset"
    one_object_each()
    works()


# ---------------------------------------------------------------- install and uninstall


def snapshot() -> Any:
    getattrs = {
        name: vars(module).get("__getattr__")
        for name, module in sys.modules.items()
        if name.startswith("torch")
    }
    return list(sys.meta_path), set(sys.modules), torch.manual_seed, getattrs, builtins.__import__


def bare_uninstall_leaves_nothing() -> None:
    before = snapshot()
    standin.install(helpers())
    standin.install(helpers())
    assert len(sys.meta_path) == len(before[0]) + 1
    assert not standin.is_real() and standin.twins()
    standin.uninstall()
    standin.uninstall()
    assert snapshot() == before
    assert not standin.is_real() and standin.twins() == {}
    importlib.import_module("torch._dynamo")
    assert standin.is_real() and standin.materialized_by() is None
    works()


def bare_uninstall_makes_a_stand_in_real() -> None:
    path = list(sys.meta_path)
    standin.install(helpers())
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()
    importlib.import_module("torch._inductor.config")
    held = torch._dynamo, torch._dynamo.disable, torch._dynamo.utils, torch._inductor
    standin.uninstall()
    assert sys.meta_path == path
    assert standin.is_real() and standin.materialized_by() == "uninstall"
    assert held[0] is torch._dynamo is sys.modules["torch._dynamo"]
    assert held[1](lambda: 1)() == 1
    assert held[2].counters is torch._dynamo.utils.counters
    assert held[3].compile is torch._inductor.compile
    for name in torch_api.tables().STANDIN_BESIDE:
        assert "__getattr__" not in vars(sys.modules[name]), name
    one_object_each()
    works()
    standin.install(helpers())
    assert sys.meta_path == path


def bare_install_again() -> None:
    standin.install(helpers())
    standin.uninstall()
    standin.install(helpers())
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()
    assert not standin.is_real() and "torch._dynamo" in sys.modules
    torch._dynamo.reset()
    works()


def bare_install_after_the_real_one() -> None:
    import torch._dynamo

    path = list(sys.meta_path)
    standin.install(helpers())
    assert sys.meta_path == path and standin.is_real()
    assert standin.twins() == {} and standin.materialized_by() is None
    assert standin.enum_type() is torch._dynamo.guards.GuardManagerType
    with standin.building():
        pass
    assert standin.module_for("torch._dynamo.utils") is torch._dynamo.utils
    standin.materialize("nothing to do")
    standin.uninstall()
    works()


def bare_install_without_helpers() -> None:
    """Without records only files loaded alone and hand-written names are answered."""
    standin.install()
    import torch._dynamo.config

    torch._dynamo.config.verbose = True
    torch._dynamo.allow_in_graph(len)
    assert not standin.is_real()
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()
    assert standin.materialized_by() == "torch._dynamo.disable"
    assert torch._dynamo.config.verbose
    works()


def bare_install_more_helpers() -> None:
    """What a second artifact needs, after the modules that it is in were made."""
    later = {
        ("torch._dynamo.polyfills", "mutable_mapping_update"),
        ("torch._dynamo.variables.functions", "_create_nested_fn"),
    }
    records = helpers()
    triples = [(*key, r) for key, r in records.items()] if isinstance(records, dict) else records
    standin.install([row for row in triples if (row[0], row[1]) not in later])
    import torch._dynamo

    polyfills, kept = torch._dynamo.polyfills, torch._dynamo.disable
    standin.install(triples)
    assert polyfills.mutable_mapping_update is standin.twins()[sorted(later)[0]]
    functions = standin.module_for("torch._dynamo.variables.functions")
    assert functions._create_nested_fn is standin.twins()[sorted(later)[1]]
    assert torch._dynamo.disable is kept
    assert not standin.is_real()
    works()


def install_imports_nothing() -> None:
    assert "torch._dynamo" not in sys.modules
    assert "torch._inductor" not in sys.modules


def callbacks_run_once() -> None:
    seen: list[Any] = []
    standin.on_materialize(lambda: seen.append((standin.is_real(), torch._dynamo.reset)))
    remove = standin.on_materialize(lambda: seen.append("removed"))
    remove()
    remove()

    def broken() -> None:
        raise ValueError("from a callback")

    standin.on_materialize(broken)
    standin.on_materialize(lambda: seen.append(torch._dynamo.guards.GuardBuilder))
    try:
        torch._dynamo.reset()
    except ValueError as error:
        assert str(error) == "from a callback"
    else:
        raise AssertionError("the error of a callback was lost")
    assert len(seen) == 2 and seen[0][0]
    assert standin.is_real()
    torch._dynamo.reset()
    assert len(seen) == 2
    one_object_each()
    works()


# ---------------------------------------------------------------- guards, bytecode


def tree() -> Any:
    kind = standin.enum_type()
    with standin.building():
        root = torch_api.serve().RootGuardManager()
        example = {"a": {"b": 1}}
        x = root.framelocals_manager(("x", 0), "L['x']", example, kind.DICT_GUARD_MANAGER)
        key = x.get_key_manager(0, "key", "a", kind.GUARD_MANAGER)
        key.add_equals_match_guard("a", ["key == 'a'"], None)
        value = x.get_value_manager(0, "value", example["a"], kind.GUARD_MANAGER)
        value.add_type_match_guard(id(dict), ["type"], None)
    return root


def check_tree(root: Any) -> None:
    def frame(x: Any) -> Any:
        return sys._getframe().f_locals

    assert root.check(frame({"a": {}}))
    assert not root.check(frame({"b": {}}))
    assert not root.check(frame({"a": 1}))


def guard_trees_need_no_dynamo() -> None:
    first = tree()
    assert not standin.is_real()
    assert "torch._dynamo.guards" not in sys.modules
    before = set(sys.modules)
    second = tree()
    assert set(sys.modules) == before
    check_tree(first)
    check_tree(second)
    ours = standin.enum_type()
    torch._dynamo.reset()
    assert standin.enum_type() is torch._dynamo.guards.GuardManagerType is ours
    works()
    x = {"a": {"b": torch.ones(1)}}
    f = torch.compile(lambda x: x["a"]["b"] + 1, backend="eager")
    assert f(x).item() == 2 and f({"a": {"b": torch.ones(2)}}).shape == (2,)
    check_tree(first)
    check_tree(tree())


def bare_guard_trees_survive_uninstall() -> None:
    standin.install(helpers())
    root = tree()
    standin.uninstall()
    assert standin.is_real()
    works()
    check_tree(root)
    check_tree(tree())


def guard_trees_while_others_import() -> None:
    """Another thread may import the real package while trees are built."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(300):
                check_tree(tree())
        except BaseException as error:  # noqa: BLE001 - collected
            errors.append(error)

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    importlib.import_module("torch._dynamo.guards")
    for thread in threads:
        thread.join()
    sys.setswitchinterval(old)
    assert not errors, errors
    one_object_each()
    works()


def names_for_bytecode() -> None:
    twins = standin.twins()
    assert twins["torch._dynamo.decorators", "disable"] is torch._dynamo.disable
    assert ("torch._dynamo.decorators", "_P") not in twins
    utils = standin.module_for("torch._dynamo.utils")
    assert utils is sys.modules["torch._dynamo.utils"]
    x = torch.arange(6.0).reshape(2, 3)[:, 1:]
    sizes = utils.call_size(x, 1), utils.call_stride(x, 0), utils.call_storage_offset(x)
    assert sizes == (2, 3, 1)
    manager = utils.record_pregraph_bytecode_enter()
    utils.record_pregraph_bytecode_exit(manager)

    class Thing:
        x = property(lambda self: 1)

    thing = Thing()
    utils.object_setattr_ignore_descriptor(thing, "x", 5)
    assert vars(thing) == {"x": 5}
    polyfills = standin.module_for("torch._dynamo.polyfills")
    target: dict[str, int] = {}
    polyfills.mutable_mapping_update(target, {"a": 1}, b=2)
    assert target == {"a": 1, "b": 2}
    assert polyfills.Mapping is importlib.import_module("collections.abc").Mapping
    external = standin.module_for("torch._dynamo.external_utils")
    assert external.wrap_inline(abs)(-1) == 1
    hidden = standin.module_for("torch._dynamo.eval_frame")
    assert hidden.innermost_fn(torch._dynamo.disable(abs)) is abs
    assert "torch._dynamo.eval_frame" not in sys.modules
    deep = standin.module_for("torch._dynamo.variables.functions")
    code = (lambda: a + b).__code__  # type: ignore[name-defined] # noqa: F821
    flags = [
        (standin.module_for(module), name)
        for module, names in torch_api.tables().STANDIN_FLAGS.items()
        for name in names
    ]
    assert [getattr(*flag) for flag in flags] == [False] * len(flags)
    made = deep._create_nested_fn(code, {"a": 1, "b": 2}, "made", None, None, None, None)
    assert made() == 3
    assert "torch._dynamo.variables" not in sys.modules
    assert not standin.is_real()
    assert standin.module_for("torch._dynamo") is torch._dynamo
    assert standin.module_for("math").pi > 3
    guards = standin.module_for("torch._dynamo.guards")
    assert standin.is_real() and guards is torch._dynamo.guards
    assert standin.materialized_by() == "torch._dynamo.guards"
    assert standin.module_for("torch._dynamo.utils") is utils
    assert standin.module_for("torch._dynamo.eval_frame") is hidden
    assert standin.module_for("torch._dynamo.variables.functions") is deep
    assert [getattr(*flag) for flag in flags] == [False] * len(flags)
    assert standin.twins() == {}
    assert polyfills.Mapping and polyfills.mutable_mapping_update
    one_object_each()


def classes_of_compiled_modules() -> None:
    from torch._dynamo import OptimizedModule as early

    class Mine(torch.nn.Module):
        pass

    assert not isinstance(Mine(), early)
    standin.add_module_class(Mine)
    assert isinstance(Mine(), torch._dynamo.eval_frame.OptimizedModule)
    assert issubclass(Mine, early) and not isinstance(torch.nn.Linear(1, 1), early)
    assert not standin.is_real()
    compiled = torch.compile(torch.nn.Linear(1, 1), backend="eager")
    assert standin.is_real()
    assert torch._dynamo.OptimizedModule is not early
    assert isinstance(compiled, early) and type(compiled) is torch._dynamo.OptimizedModule
    assert issubclass(torch._dynamo.OptimizedModule, early)


def twins_are_the_code_of_torch() -> None:
    """Code, defaults and attributes of each twin equal those of the original."""
    twins = standin.twins()
    written = {(m, n) for m, n in standin._lazy.written.names} if standin._lazy else set()
    torch._dynamo.reset()
    compared = 0
    for (module, name), twin in twins.items():
        if (module, name) in written:
            continue
        real = getattr(importlib.import_module(module), name)
        if isinstance(twin, types.FunctionType):
            assert twin.__code__ == real.__code__, name
            assert twin.__code__.co_filename == real.__code__.co_filename, name
            assert twin.__defaults__ == real.__defaults__, name
            assert twin.__kwdefaults__ == real.__kwdefaults__, name
            assert twin.__module__ == real.__module__, name
            assert set(vars(twin)) == set(vars(real)), name
            compared += 1
        elif isinstance(twin, type) and name != "_DimRange":
            methods = {k: v for k, v in vars(twin).items() if isinstance(v, types.FunctionType)}
            for method, function in methods.items():
                assert function.__code__ == vars(real)[method].__code__, (name, method)
            compared += 1
    assert compared > 25
    assert twins["torch._dynamo.decorators", "_DimRange"] is torch._dynamo.decorators._DimRange


# ---------------------------------------------------------------- inside compiled regions


class Nothing:
    """What a frame evaluator callback returns to run the frame and its callees as they are."""

    guarded_code = None
    apply_to_code = False
    skip_reason = None

    def __init__(self) -> None:
        api = torch_api.serve()
        action = api.FrameAction.DEFAULT
        self.frame_exec_strategy = api.FrameExecStrategy(action, action)


def frames_of(action: Any) -> list[str]:
    """Files of all Python frames that the frame evaluator sees while *action* runs."""
    seen: list[str] = []
    set_eval_frame = torch_api.serve().set_eval_frame
    nothing = Nothing()

    def callback(frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        seen.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        return nothing

    standin.unobserved(callback)
    standin.unobserved(frames_of)
    set_eval_frame(callback)
    try:
        action()
    finally:
        set_eval_frame(None)
    return seen


def ours(seen: list[str]) -> list[str]:
    root = os.path.dirname(os.path.abspath(standin.__file__))
    return [frame for frame in seen if root in frame or "/torch/_dynamo/" in frame]


def the_evaluator_sees_none_of_our_frames() -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def hook(x: Any) -> Any:
        return x

    def region() -> None:
        torch._dynamo.disable(hook)(1)
        torch._dynamo.disable(hook, recursive=False)(1)
        torch._dynamo.graph_break()
        torch._dynamo.mark_dynamic(torch.ones(2, 2), [0, 1], min=2)
        torch._dynamo.mark_static_address(torch.ones(2))
        torch._dynamo.is_dynamo_supported()
        torch._dynamo.allow_in_graph(hook)
        torch._dynamo.utils.call_size(torch.ones(2), 0)
        torch.compiler.is_compiling()
        torch._dynamo.utils.is_compile_supported("cpu")
        torch.distributed.tensor  # noqa: B018
        torch._dynamo.trace_rules.clear_lru_cache()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        isinstance(net, torch._dynamo.OptimizedModule)

    seen = frames_of(region)
    assert any(frame.endswith(":region") for frame in seen)
    assert sum(frame.endswith(":hook") for frame in seen) == 1  # of the non-recursive one
    assert not ours(seen), ours(seen)
    assert not standin.is_real()


def first_import_inside_a_region() -> None:
    """The stand-in may be made, and become real, inside a compiled region."""

    def region() -> None:
        torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()

    assert "torch._dynamo" not in sys.modules
    seen = frames_of(region)
    assert not ours(seen), ours(seen)
    assert not standin.is_real()

    def more() -> None:
        torch._dynamo.reset  # noqa: B018

    seen = frames_of(more)
    assert standin.is_real()
    assert not ours(seen), ours(seen) and len(seen) < 5
    works()


def evaluator_is_off_while_materialising() -> None:
    api = torch_api.serve()
    seen: list[Any] = []
    standin.on_materialize(lambda: seen.append(api.get_eval_frame_callback()))

    def callback(frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        return Nothing()

    standin.unobserved(callback, recursive=True)
    api.set_eval_frame(callback)
    try:
        standin.materialize("x")
        assert api.get_eval_frame_callback() is callback
    finally:
        api.set_eval_frame(None)
    assert seen == [None]


SCENARIOS = [
    name
    for name, value in list(vars().items())
    if isinstance(value, types.FunctionType)
    and value.__module__ == __name__
    and value.__code__.co_argcount == 0
    and name not in ("helpers", "one_object_each", "works", "snapshot", "tree")
]
