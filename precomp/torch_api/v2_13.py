"""Private names of torch 2.13."""

from __future__ import annotations

SERVE: dict[str, str] = {
    # frame evaluator
    "set_eval_frame": "torch._C._dynamo.eval_frame:set_eval_frame",
    "set_code_exec_strategy": "torch._C._dynamo.eval_frame:set_code_exec_strategy",
    "FrameAction": "torch._C._dynamo.eval_frame:_FrameAction",
    "FrameExecStrategy": "torch._C._dynamo.eval_frame:_FrameExecStrategy",
    "reset_code": "torch._C._dynamo.eval_frame:reset_code",
    # guards
    # plan
    "Tensor": "torch:Tensor",
    "is_grad_enabled": "torch._C:is_grad_enabled",
    "set_grad_enabled": "torch._C:_set_grad_enabled",
    "is_view_replay_enabled": "torch._C:_is_view_replay_enabled",
    "set_view_replay_enabled": "torch._C:_set_view_replay_enabled",
    "DisableAutocast": "torch._C:_DisableAutocast",
    "increment_version": "torch._C:_increment_version",
    "functorch_transforms_active": "torch._C:_are_functorch_transforms_active",
    "functorch_interpreter_stack": "torch._C._functorch:peek_interpreter_stack",
    "functorch_unwrap_if_dead": "torch._C._functorch:unwrap_if_dead",
    "are_deterministic_algorithms": "torch._C:_get_deterministic_algorithms",
    "graph_task_keep_graph": "torch._C._autograd:_get_current_graph_task_keep_graph",
    "is_key_in_tls": "torch._C:_is_key_in_tls",
    "get_obj_in_tls": "torch._C:_get_obj_in_tls",
    "aten_unsafe_view": "torch:ops.aten._unsafe_view.default",
    "functionalization": "torch._C._functionalization",
    "apply_view_meta_sequence": "torch._C._functionalization:apply_view_meta_sequence",
    "InverseReturnMode": "torch._C._functionalization:InverseReturnMode",
    "view_as_real": "torch:view_as_real",
    "view_as_complex": "torch:view_as_complex",
    "empty_strided": "torch:empty_strided",
    "foreach_copy_": "torch:_foreach_copy_",
    "FunctionBase": "torch._C:_FunctionBase",
    # module and kernel
    # stand-in
}

CAPTURE: dict[str, str] = {
    # frame
    # guards
    # plan
    "OutputGraph": "torch._dynamo.output_graph:OutputGraph",
    "DDPOptimizer": "torch._dynamo.backends.distributed:DDPOptimizer",
    "TorchCompileInductorWrapper": "torch:_TorchCompileInductorWrapper",
    "inductor_backend": "torch._dynamo.backends.inductor:inductor",
    "compile_fx": "torch._inductor.compile_fx:compile_fx",
    "compile_fx_module": "torch._inductor.compile_fx",
    "count_calls": "torch._dynamo.utils:count_calls",
    "OutputCode": "torch._inductor.output_code:OutputCode",
    "CompiledFxGraph": "torch._inductor.output_code:CompiledFxGraph",
    "AOTDispatchAutograd": "torch._functorch._aot_autograd.runtime_wrappers:AOTDispatchAutograd",
    "RuntimeWrapper": "torch._functorch._aot_autograd.runtime_wrappers:RuntimeWrapper",
    "AOTDedupeWrapper": "torch._functorch._aot_autograd.runtime_wrappers:AOTDedupeWrapper",
    "AOTSyntheticBaseWrapper": (
        "torch._functorch._aot_autograd.runtime_wrappers:AOTSyntheticBaseWrapper"
    ),
    "should_disable_saved_tensors_hooks": (
        "torch._functorch._aot_autograd.runtime_wrappers:_should_disable_saved_tensors_hooks"
    ),
    "MutationType": "torch._functorch._aot_autograd.schemas:MutationType",
    "SubclassCreationMeta": "torch._functorch._aot_autograd.schemas:SubclassCreationMeta",
    "functorch_config": "torch._functorch.config",
    "inductor_config": "torch._inductor.config",
    "partition_wrapper": "torch._inductor.utils:_unstable_customized_partition_wrapper",
    "dynamo_config": "torch._dynamo.config",
    # module and kernel
}
