"""``strict_no_compile``: nothing compiles, misses, tunes or falls back unseen."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import Any, TypeVar, cast

from precomp import _core
from precomp.doors import hooks, state

__all__ = ["strict_no_compile"]

_F = TypeVar("_F", bound=Callable[..., Any])


class strict_no_compile(_core.Gate):
    """Forbid compiling in the whole process: a context manager and a decorator.

    While it is entered, whatever would trace, lower, build, load from a compile cache, tune, record
    a CUDA graph, start a compiler or fall back to eager raises ``CompileViolation`` where it
    happens, in every thread. A violation that something swallowed is raised again at exit.

    *allow* takes kinds that stay allowed: trace, lower, build, load, tune, record, fallback, spawn,
    driver_jit. ``violations`` is the tuple of all ``CompileViolation`` so far. Gates nest, may be
    entered again, and may be left in any order. Entering raises ``PrecompError`` if this torch
    lacks an entry point that must be watched, or if a setting makes it tune or fall back unseen.
    """

    def __new__(cls, *, allow: Iterable[str] = ()) -> strict_no_compile:
        return super().__new__(cls, allow)

    def __enter__(self) -> strict_no_compile:
        hooks.start()
        state.check(self.allow)
        if "fallback" not in self.allow or "trace" not in self.allow:
            state.rearm()
        super().__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> bool:
        watch: Any = sys.modules.get("precomp.distributed.watch")
        if watch is not None:
            watch.settle(self, exc_info[1] if len(exc_info) > 1 else None)
        result = super().__exit__(*exc_info)
        if not exc_info or exc_info[0] is None:
            hooks.raise_if_missing()
        return result

    def __call__(self, function: _F) -> _F:
        """Decorate *function*: each call has a gate of its own that allows the same kinds."""
        if isinstance(function, type) or not callable(function):
            raise TypeError(
                f"strict_no_compile decorates functions, not {type(function).__name__} objects"
            )
        allow = self.allow

        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
                with strict_no_compile(allow=allow):
                    inner = function(*args, **kwargs)
                    try:
                        value = await inner.__anext__()
                        while True:
                            try:
                                sent = yield value
                            except GeneratorExit:
                                await inner.aclose()
                                raise
                            except BaseException as error:  # noqa: BLE001 - handed on
                                value = await inner.athrow(error)
                            else:
                                value = await inner.asend(sent)
                    except StopAsyncIteration:
                        return

        elif inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with strict_no_compile(allow=allow):
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                with strict_no_compile(allow=allow):
                    return (yield from function(*args, **kwargs))

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with strict_no_compile(allow=allow):
                    return function(*args, **kwargs)

        return cast(_F, wrapper)
