"""replay.py DIR: rebuilds the tapes of record.py without torch's compiler and decides again."""

import json
import sys
from pathlib import Path

import harness
import oracle
import programs

from precomp import _core, data, live_objects, torch_api
from precomp.serve import guards
from precomp.serve.reasons import explain


def compiler_modules():
    return [
        module
        for module in sys.modules
        if module.startswith(("torch._dynamo", "torch._inductor", "triton", "sympy"))
    ]


def main(out: Path) -> None:
    torch_api.serve()
    results = {}
    recorded = json.loads((out / "recorded.json").read_text())
    loaded = []
    for name, entry in sorted(recorded.items(), key=lambda pair: pair[1].get("loads", False)):
        if "refused" in entry:
            continue
        program = programs.PROGRAMS[name]()
        f_globals = harness.globals_of(program)
        harness.install_globals(entry["specs"], f_globals)
        record = data.loads((out / f"{name}.tape").read_bytes())
        tape = _core.GuardTape(record)
        keep = []
        live = ()
        if record["live"] is not None:
            reader = live_objects.Reader(record, harness.locals_of(program), f_globals, None)
            live = live_objects.find(record["live"], reader, None)

        def fresh(tape=tape, keep=keep, f_globals=f_globals, live=live):
            root, kept = guards.build(
                tape, f_globals, None, harness.GuardManagerType, harness.building(), live
            )
            keep.append(kept)
            return root

        def opinion(record=record, f_globals=f_globals, live=live):
            return oracle.build(record, f_globals, live)

        old = fresh()
        first = harness.decide_base(program, old.check)
        second = opinion()
        harness.decide_base(program, second)
        decisions, before, opinions, reasons = {}, {}, {}, {}
        for variation in program.variations:
            decisions[variation] = harness.decide(program, variation, old.check)
            reasons[variation] = harness.decide(
                program,
                variation,
                lambda f_locals, old=old, f_globals=f_globals, tape=record: explain(
                    old, f_locals, f_globals, {"globals": (), "tape": tape}
                ),
            )
            decisions[f"{variation}, undone"] = harness.decide_base(program, old.check)
            # A tree that is built while the state differs already.
            made = []

            def build_and_check(f_locals, fresh=fresh, made=made):
                try:
                    made.append(fresh())
                except _core.Stale:
                    return False  # seen even before a tree is there
                return made[0].check(f_locals)

            before[variation] = harness.decide(program, variation, build_and_check)
            again = made[0].check if made else fresh().check
            before[f"{variation}, undone"] = harness.decide_base(program, again)
            opinions[variation] = harness.decide(program, variation, second)
            opinions[f"{variation}, undone"] = harness.decide_base(program, second)
        results[name] = {
            "first": first,
            "binds": tape.binds,
            "decisions": decisions,
            "before": before,
            "oracle": opinions,
            "reasons": reasons,
        }
        if not entry["loads"]:
            loaded = compiler_modules()
    (out / "replayed.json").write_text(json.dumps({"programs": results, "loaded": loaded}))


main(Path(sys.argv[1]))
