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
    # module and kernel
    "tensor_data_ptr": "torch._C._dynamo.guards:_torchinductor_pyobject_tensor_data_ptr",
    "OperatorDefinitions": "torch._library.custom_ops:OPDEFS",
    "operator_registry": "torch._library.simple_registry:singleton",
    "dispatch_dump": "torch._C:_dispatch_dump",
    "get_schema": "torch._C:_get_schema",
    # stand-in
}

CAPTURE: dict[str, str] = {
    # frame
    # guards
    # plan
    # module and kernel
    "CompiledFxGraph": "torch._inductor.output_code:CompiledFxGraph",
    "extern_kernels": "torch._inductor.select_algorithm:extern_kernels",
    "OpOverload": "torch._ops:OpOverload",
    "OpOverloadPacket": "torch._ops:OpOverloadPacket",
    "OpNamespace": "torch._ops:_OpNamespace",
    "Ops": "torch._ops:_Ops",
}
