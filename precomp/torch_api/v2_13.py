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
    # stand-in
}

CAPTURE: dict[str, str] = {
    # frame
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
}
