"""Private names of torch 2.13."""

from __future__ import annotations

SERVE: dict[str, str] = {
    # frame evaluator
    "set_eval_frame": "torch._C._dynamo.eval_frame:set_eval_frame",
    "set_code_exec_strategy": "torch._C._dynamo.eval_frame:set_code_exec_strategy",
    "FrameAction": "torch._C._dynamo.eval_frame:_FrameAction",
    "FrameExecStrategy": "torch._C._dynamo.eval_frame:_FrameExecStrategy",
    "reset_code": "torch._C._dynamo.eval_frame:reset_code",
    "dynamic_layer_depth": "torch._C._functorch:get_dynamic_layer_stack_depth",
    "undo_dynamic_layers": "torch._C._functorch:pop_dynamic_layer_stack_and_undo_to_depth",
    "tls_include": "torch._C:_dispatch_tls_local_include_set",
    "tls_exclude": "torch._C:_dispatch_tls_local_exclude_set",
    "ForceDispatchKeyGuard": "torch._C:_ForceDispatchKeyGuard",
    # guards
    "torch": "torch:",
    "empty": "torch:empty",
    "Parameter": "torch.nn:Parameter",
    "RootGuardManager": "torch._C._dynamo.guards:RootGuardManager",
    "GuardManager": "torch._C._dynamo.guards:GuardManager",
    "DictGuardManager": "torch._C._dynamo.guards:DictGuardManager",
    "GlobalStateGuard": "torch._C._dynamo.guards:GlobalStateGuard",
    "install_no_tensor_aliasing_guard": (
        "torch._C._dynamo.guards:install_no_tensor_aliasing_guard"
    ),
    "install_object_aliasing_guard": "torch._C._dynamo.guards:install_object_aliasing_guard",
    "install_storage_overlapping_guard": (
        "torch._C._dynamo.guards:install_storage_overlapping_guard"
    ),
    "dict_version": "torch._C._dynamo.guards:dict_version",
    "DispatchKeySet": "torch._C:DispatchKeySet",
    "ForceDispatchKeyGuard": "torch._C:_ForceDispatchKeyGuard",
    "DisableTorchFunction": "torch._C:DisableTorchFunction",
    "InverseReturnMode": "torch._C._functionalization:InverseReturnMode",
    "device_module": "torch.utils._device:",
    "top_saved_tensors_hooks": "torch._C._autograd:_top_saved_tensors_default_hooks",
    "compare_functorch_state": "torch._functorch.pyfunctorch:compare_functorch_state",
    "saved_tensors_hooks_are_inlineable": (
        "torch._functorch._aot_autograd.utils:saved_tensors_hooks_are_inlineable"
    ),
    "as_tensor_fullprec": "torch:_as_tensor_fullprec",
    # plan
    # module and kernel
    "tensor_data_ptr": "torch._C._dynamo.guards:_torchinductor_pyobject_tensor_data_ptr",
    "OperatorDefinitions": "torch._library.custom_ops:OPDEFS",
    "operator_registry": "torch._library.simple_registry:singleton",
    "dispatch_dump": "torch._C:_dispatch_dump",
    "get_schema": "torch._C:_get_schema",
    # stand-in
}

# Names of torch's compiler, used while serving only once something else has imported it.
COMPILER: dict[str, str] = {
    "CatchErrorsWrapper": "torch._dynamo.convert_frame:CatchErrorsWrapper",
    "InductorWrapper": "torch:_TorchCompileInductorWrapper",
    "OptimizedModule": "torch._dynamo.eval_frame:OptimizedModule",
    "optimize": "torch._dynamo:optimize",
    "orig_code_map": "torch._dynamo.utils:orig_code_map",
}

CAPTURE: dict[str, str] = {
    # frame
    "CatchErrorsWrapper": "torch._dynamo.convert_frame:CatchErrorsWrapper",
    "CleanupHook": "torch._dynamo.utils:CleanupHook",
    "FrameAction": "torch._C._dynamo.eval_frame:_FrameAction",
    "FrameExecStrategy": "torch._C._dynamo.eval_frame:_FrameExecStrategy",
    "InductorWrapper": "torch:_TorchCompileInductorWrapper",
    "InliningInstructionTranslator": "torch._dynamo.symbolic_convert:InliningInstructionTranslator",
    "InstructionTranslatorBase": "torch._dynamo.symbolic_convert:InstructionTranslatorBase",
    "cache_entries": "torch._C._dynamo.eval_frame:_debug_get_cache_entry_list",
    "list_mode_options": "torch._inductor:list_mode_options",
    "orig_code_map": "torch._dynamo.utils:orig_code_map",
    "reset": "torch._dynamo:reset",
    "set_code_exec_strategy": "torch._C._dynamo.eval_frame:set_code_exec_strategy",
    "trace_rules": "torch._dynamo.trace_rules",
    # guards
    "guards_module": "torch._dynamo.guards:",
    "guard_manager_type": "torch._dynamo.guards:GuardManagerType",
    "check_function_manager": "torch._dynamo.guards:CheckFunctionManager",
    "sympy_interp": "torch.fx.experimental.symbolic_shapes:SYMPY_INTERP",
    "supported_nodes": "torch.utils._pytree:SUPPORTED_NODES",
    "op_namespace": "torch._ops:_OpNamespace",
    "op_overload": "torch._ops:OpOverload",
    "op_overload_packet": "torch._ops:OpOverloadPacket",
    "dispatch_keys_include": "torch._C:_dispatch_tls_local_include_set",
    "dispatch_keys_exclude": "torch._C:_dispatch_tls_local_exclude_set",
    # plan
    # module and kernel
    "CompiledFxGraph": "torch._inductor.output_code:CompiledFxGraph",
    "extern_kernels": "torch._inductor.select_algorithm:extern_kernels",
    "OpOverload": "torch._ops:OpOverload",
    "OpOverloadPacket": "torch._ops:OpOverloadPacket",
    "OpNamespace": "torch._ops:_OpNamespace",
    "Ops": "torch._ops:_Ops",
}
