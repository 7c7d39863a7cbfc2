"""The place where torch is installed stays out of the kernels that a capture builds."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import torch

import precomp


def test_the_compiler_is_told_to_leave_the_place_of_torch_out(tmp_path: Path) -> None:
    from torch._inductor import cpp_builder

    compiler = tmp_path / "g++-99"
    compiler.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/seen\n")
    compiler.chmod(0o755)
    run, command = cpp_builder.run_compile_cmd, f"{shlex.quote(str(compiler))} -c x.cpp"
    cpp_builder.run_compile_cmd(command, cwd=str(tmp_path))
    with precomp.capture():
        cpp_builder.run_compile_cmd(command, cwd=str(tmp_path))
    cpp_builder.run_compile_cmd(command, cwd=str(tmp_path))
    home = os.path.dirname(os.path.abspath(torch.__file__))
    option = f" -fmacro-prefix-map={home}/=torch/"
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen == ["-c x.cpp", f"-c x.cpp{option}", "-c x.cpp"]
    assert cpp_builder.run_compile_cmd is run


def test_other_compilers_get_no_option_that_they_may_not_know(tmp_path: Path) -> None:
    from torch._inductor import cpp_builder

    compiler = tmp_path / "other"
    compiler.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/seen\n")
    compiler.chmod(0o755)
    with precomp.capture():
        cpp_builder.run_compile_cmd(f"{compiler} -c x.cpp", cwd=str(tmp_path))
    assert (tmp_path / "seen").read_text() == "-c x.cpp\n"
