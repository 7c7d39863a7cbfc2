"""The command line: ``precomp``, or ``python -m precomp`` (docs/cli.md).

Nothing is imported before it is needed: what only reads a file imports no torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import precomp
from precomp.errors import PrecompError

FAILURE = 1
USAGE = 2  # as argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line *argv* (default: ``sys.argv[1:]``) and return the exit status.

    0: done. 1: it failed, or ``diff`` found a difference; standard error has the reason. 2: usage.
    ``run`` ends as the script does.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        from precomp.cli import run

        return run.main(words[1:])
    options = _parser().parse_args(words)
    try:
        status = _COMMANDS[options.command](options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # nobody reads; what is left goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (PrecompError, OSError) as error:
        return fail(message(error))


def message(error: Exception) -> str:
    """What an error says, with the file of an error of the file system in front."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def fail(text: str) -> int:
    """Say on standard error what went wrong."""
    print(f"precomp: {text}", file=sys.stderr)
    return FAILURE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="precomp", description="Start torch.compile programs without compiling.",
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"precomp {precomp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "run", help="run a script captured, prepared or strict", add_help=False
    )  # has a parser of its own: most of its words are the script's

    def command(name: str, text: str, *files: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=f"{text}.", allow_abbrev=False)
        for file in files:
            made.add_argument(file.lower(), metavar=file)
        return made

    inspect = command("inspect", "show what an artifact holds", "FILE")
    inspect.add_argument("--guards", action="store_true", help="also the guards of each function")
    inspect.add_argument("--json", action="store_true", help="as one JSON object")
    command("verify", "check every byte of an artifact, and its kernels", "FILE")
    command("diff", "show how two artifacts differ; the exit status is 1 if they do", "A", "B")
    merge = command("merge", "write the union of artifacts")
    merge.add_argument("files", metavar="FILE", nargs="+")
    merge.add_argument("-o", "--output", metavar="OUT", required=True)
    bind = command("bind", "record with a model file which artifact it belongs to", "MODEL", "FILE")
    bind.add_argument("--side-file", action="store_true", help="leave a safetensors file as it is")
    report = command("report", "write a page about an artifact", "FILE")
    report.add_argument("--html", metavar="OUT", required=True)
    return parser


def _inspect(options: argparse.Namespace) -> int:
    from precomp.artifact import Artifact
    from precomp.cli import describe

    with Artifact.open(options.file) as artifact:
        facts = describe.artifact(artifact, guards=options.guards)
    if options.json:
        import json

        print(json.dumps(facts, indent=1))
    else:
        print(describe.text(facts))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from precomp.artifact import Artifact
    from precomp.cli import verify

    with Artifact.open(options.file) as artifact:
        print(verify.verify(artifact))
    return 0


def _diff(options: argparse.Namespace) -> int:
    from precomp.artifact import Artifact
    from precomp.cli import compare

    with Artifact.open(options.a) as left, Artifact.open(options.b) as right:
        difference = left.diff(right)
        print("\n".join([str(difference), *compare.details(left, right, difference)]))
    return FAILURE if difference else 0


def _merge(options: argparse.Namespace) -> int:
    from precomp.artifact import Artifact
    from precomp.cli import describe

    with Artifact.merge(options.files, options.output) as merged:
        print(describe.summary(merged))
    return 0


def _bind(options: argparse.Namespace) -> int:
    from precomp.binding import bind

    binding = bind(options.model, options.file, side_file=options.side_file or None)
    print(f"{binding.where}: bound to fingerprint {binding.fingerprint}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from precomp.artifact import Artifact
    from precomp.cli import describe, page

    with Artifact.open(options.file) as artifact:
        text = page.page(describe.artifact(artifact, guards=True))
    page.write(options.html, text)
    return 0


_COMMANDS = {
    "inspect": _inspect,
    "verify": _verify,
    "diff": _diff,
    "merge": _merge,
    "bind": _bind,
    "report": _report,
}
