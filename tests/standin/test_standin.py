"""Features of eager torch under the stand-in: they work, give equal results, and need the real
compiler only where the table says so (the value is the first name that needs it)."""

from __future__ import annotations

from typing import Any

import pytest

# case in cases.py -> what makes the real package arrive
CASES: dict[str, str | None] = {
    "sgd": None,
    "adamw": None,
    "adam_foreach_capturable_off": None,
    "adagrad": None,
    "rmsprop": None,
    "lbfgs": None,
    "nadam_differentiable_off": None,
    "lr_scheduler": None,
    "swa": None,
    "clip_and_autograd": None,
    "backward_with_gradient": None,
    "checkpoint_non_reentrant": None,
    "checkpoint_reentrant": None,
    "checkpoint_selective": None,
    "amp": None,
    "data_loader": None,
    "save_and_load": None,
    "manual_seed": None,
    "func_transforms": None,
    "custom_op": None,
    "profiler": None,
    "profiler_with_stack": None,
    "parametrize": None,
    "deep_copy": None,
    "transformer_encoder": None,
    "attention_bias": None,
    "make_fx": "torch._inductor.fx_passes",
    "symbolic_trace": None,
    "import_export": None,
    "export_program": "torch._dynamo.exc",
    "jit_script": None,
    "disable_function": None,
    "disable_class": None,
    "disable_module": "torch._dynamo.eval_frame.OptimizedModule",
    "disable_as_context": "torch._dynamo.eval_frame.DisableContext",
    "marks": None,
    "mark_subclass": None,
    "pickle_marks": None,
    "allow_in_graph": None,
    "assume_constant": None,
    "stance_default": None,
    "stance_force_eager": "torch._dynamo.eval_frame._set_stance",
    "stance_wrong": "torch._dynamo.eval_frame._set_stance",
    "is_compiling": None,
    "dynamo_config": None,
    "compiler_config": None,
    "inductor_config": None,
    "lazy_neighbours": None,
    "materialize_in_modes": "torch._dynamo.reset",
    "list_backends": "torch._dynamo.list_backends",
    "compile_reset": "torch._dynamo.reset",
    "train_then_compile": "torch._dynamo.backends",
    "allow_in_graph_then_compile": "torch._dynamo.backends",
    "ddp": None,
    "import_fsdp": None,
    "fsdp2": None,
    "fsdp1": None,
    "distributed_state_dict": None,
    "composable_checkpoint": None,
    "torchvision_resnet": None,
    "timm_mixer": None,
    "transformers_llama": None,
    "transformers_bert": None,
    "transformers_static_cache": None,
}

SCENARIOS = (
    "by_attribute",
    "by_attribute_of_submodule",
    "by_attribute_of_hidden_submodule",
    "by_submodule_import",
    "by_deep_import",
    "by_import_of_hidden_submodule",
    "by_from_import",
    "by_from_import_of_submodule",
    "by_star_import",
    "by_reload",
    "by_find_spec",
    "by_compile",
    "by_inductor",
    "bare_before_any_import",
    "by_call",
    "bare_materialize_without_stand_in",
    "bare_materialize_without_install",
    "by_many_threads",
    "while_a_submodule_is_imported_elsewhere",
    "after_a_failure",
    "bare_uninstall_leaves_nothing",
    "bare_uninstall_makes_a_stand_in_real",
    "bare_install_again",
    "bare_install_after_the_real_one",
    "bare_install_without_helpers",
    "bare_install_more_helpers",
    "install_imports_nothing",
    "callbacks_run_once",
    "guard_trees_need_no_dynamo",
    "bare_guard_trees_survive_uninstall",
    "guard_trees_while_others_import",
    "names_for_bytecode",
    "classes_of_compiled_modules",
    "twins_are_the_code_of_torch",
    "the_evaluator_sees_none_of_our_frames",
    "first_import_inside_a_region",
    "evaluator_is_off_while_materialising",
)


@pytest.mark.parametrize("case", CASES)
def test_feature_works_as_without_the_stand_in(
    case: str, plain: dict[str, Any], stand_in: dict[str, Any]
) -> None:
    if case not in stand_in:
        pytest.skip("the library is not installed")
    assert plain[case]["error"] == ""
    found = stand_in[case]
    assert found["error"] == ""
    assert found["result"] == plain[case]["result"]
    assert found["why"] == CASES[case]
    assert found["real"] == (CASES[case] is not None)
    if not found["real"]:
        assert [name for name in found["heavy"] if name != "sympy"] == []


def test_every_case_has_an_expectation(stand_in: dict[str, Any]) -> None:
    assert set(stand_in) <= set(CASES)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, scenarios: dict[str, Any]) -> None:
    assert scenarios[scenario]["error"] == ""


def test_every_scenario_is_listed(scenarios: dict[str, Any]) -> None:
    assert set(scenarios) == set(SCENARIOS)
