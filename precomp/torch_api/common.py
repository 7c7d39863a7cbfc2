"""What the supported versions of torch have in common.

``SERVE``, ``COMPILER`` and ``CAPTURE``: own name -> ``"module:attribute.path"``. ``STANDIN_*``:
what ``precomp.serve.standin`` answers without importing Dynamo (docs/standin.md). The file of a
version, such as ``v2_14.py``, holds the tables that differ there.
"""

from __future__ import annotations

# The address of what a version lacks; the name is None there.
ABSENT = "builtins:None"

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
    # torch.compile
    "has_global_hooks": "torch.nn.modules.module:_has_any_global_hook",
    "InductorWrapper": "torch:_TorchCompileInductorWrapper",
    "TracingContext": "torch._guards:TracingContext",
    "guards_tls": "torch._guards:_TLS",
    "fx_tracing": "torch.fx._symbolic_trace",
    "is_fx_symbolic_tracing": "torch.fx._symbolic_trace:is_fx_symbolic_tracing",
    "is_jit_tracing": "torch._C:_is_tracing",
    "justknobs_check": "torch._utils_internal:justknobs_check",
    "set_fullgraph_compiled_frame_count": (
        "torch._C._dynamo.eval_frame:set_fullgraph_compiled_frame_count"
    ),
    # with its two values
    "set_fullgraph_nested_compile": (
        "torch._C._dynamo.eval_frame:set_fullgraph_error_on_nested_compile"
    ),
    "nested_compile_skips": "builtins:False",
    "nested_compile_raises": "builtins:True",
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
    "DisableTorchFunction": "torch._C:DisableTorchFunction",
    "enable_torch_function": "torch.overrides:_enable_torch_function",
    "InverseReturnMode": "torch._C._functionalization:InverseReturnMode",
    "device_module": "torch.utils._device:",
    "top_saved_tensors_hooks": "torch._C._autograd:_top_saved_tensors_default_hooks",
    "opaque_object_info": "torch._library.opaque_object:get_opaque_obj_info",
    "compare_functorch_state": "torch._functorch.pyfunctorch:compare_functorch_state",
    "saved_tensors_hooks_are_inlineable": (
        "torch._functorch._aot_autograd.utils:saved_tensors_hooks_are_inlineable"
    ),
    "as_tensor_fullprec": "torch:_as_tensor_fullprec",
    "dispatch_keys": "torch._C:_dispatch_keys",
    "python_key": "torch._C:DispatchKey.Python",
    "is_cow_tensor": "torch._C:_is_cow_tensor",
    "function_mode_at": "torch._C:_get_function_stack_at",
    "function_mode_count": "torch._C:_len_torch_function_stack",
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
    "view_as_real": "torch:view_as_real",
    "view_as_complex": "torch:view_as_complex",
    "empty_strided": "torch:empty_strided",
    "foreach_copy_": "torch:_foreach_copy_",
    "FunctionBase": "torch._C:_FunctionBase",
    # whether autograd.Function knows boxed_grads_call
    "boxed_grads": "builtins:True",
    # module and kernel
    "dlpack_exchange": "torch:Tensor.__dlpack_c_exchange_api__",
    "tensor_data_ptr": "torch._C._dynamo.guards:_torchinductor_pyobject_tensor_data_ptr",
    "reinterpret_tensor": "torch._C._dynamo.guards:_reinterpret_tensor",
    "storage_use_count": "torch._C:_storage_Use_Count",
    "OperatorDefinitions": "torch._library.custom_ops:OPDEFS",
    "operator_registry": "torch._library.simple_registry:singleton",
    "dispatch_dump": "torch._C:_dispatch_dump",
    "get_schema": "torch._C:_get_schema",
    # stand-in
    "get_eval_frame_callback": "torch._C._dynamo.eval_frame:get_eval_frame_callback",
    "disable_current_modes": "torch.utils._python_dispatch:_disable_current_modes",
    "remove_safe_globals": "torch._weights_only_unpickler:_remove_safe_globals",
    "DISABLE_JUSTKNOBS": "torch._utils_internal:DISABLE_JUSTKNOBS",
}

# Names that a torch without CUDA lacks.
CUDA: dict[str, str] = {
    "device": "torch._C:_cuda_getDevice",
    "stream": "torch._C:_cuda_getCurrentRawStream",
}

# The same for recording CUDA graphs.
CUDA_GRAPHS: dict[str, str] = {
    "clear_cublas_workspaces": "torch._C:_cuda_clearCublasWorkspaces",
}

# What torch's guard classes read of a module of settings for each node and guard they make.
GUARD_CONFIG_MODULE = "torch._dynamo.config"
GUARD_CONFIG: tuple[str, ...] = (
    "max_saved_pointers_for_recursive_dict_tags_check",
    "skip_tensor_guards_with_matching_dict_tags",
)

# Names of torch's compiler, used while serving only once something else has imported it.
COMPILER: dict[str, str] = {
    "CatchErrorsWrapper": "torch._dynamo.convert_frame:CatchErrorsWrapper",
    "InductorWrapper": "torch:_TorchCompileInductorWrapper",
    "GuardManagerWrapper": "torch._dynamo.guards:GuardManagerWrapper",
    "DeletedGuardManagerWrapper": "torch._dynamo.guards:DeletedGuardManagerWrapper",
    "OptimizedModule": "torch._dynamo.eval_frame:OptimizedModule",
    "OrderedSet": "torch.utils._ordered_set:OrderedSet",
    "ShortenTraceback": "torch._dynamo.exc:ShortenTraceback",
    "UncapturedHigherOrderOpError": "torch._dynamo.exc:UncapturedHigherOrderOpError",
    "Unsupported": "torch._dynamo.exc:Unsupported",
    "UserError": "torch._dynamo.exc:UserError",
    "is_eager_on_nested_compile": ABSENT,
    "always_optimize": "torch._dynamo.eval_frame:always_optimize_code_objects",
    "closure_vars": "torch._dynamo.guards:_get_closure_vars",
    "code_context": "torch._dynamo.code_context:code_context",
    "eval_frame": "torch._dynamo.eval_frame",
    "default_backend": "torch._dynamo.backends.registry:get_default_backend",
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
    "function_variables": "torch._dynamo.variables.functions:",
    "list_mode_options": "torch._inductor:list_mode_options",
    "module_variables": "torch._dynamo.variables.nn_module:",
    "orig_code_map": "torch._dynamo.utils:orig_code_map",
    "reset": "torch._dynamo:reset",
    "set_code_exec_strategy": "torch._C._dynamo.eval_frame:set_code_exec_strategy",
    "trace_rules": "torch._dynamo.trace_rules",
    # guards
    "guards_module": "torch._dynamo.guards:",
    "native_guards": "torch._C._dynamo.guards:",
    "guard_manager_type": "torch._dynamo.guards:GuardManagerType",
    "GuardManagerWrapper": "torch._dynamo.guards:GuardManagerWrapper",
    "skips_guards": "torch._dynamo.eval_frame:_is_skip_guard_eval_unsafe_stance",
    "check_function_manager": "torch._dynamo.guards:CheckFunctionManager",
    "optim_foreach_types": "torch.optim.optimizer:_foreach_supported_types",
    "utils_foreach_types": "torch.utils._foreach_utils:_foreach_supported_types",
    "VariableTracker": "torch._dynamo.variables.base:VariableTracker",
    "OptimizerVariable": "torch._dynamo.variables.optimizer:OptimizerVariable",
    "sympy_interp": "torch.fx.experimental.symbolic_shapes:SYMPY_INTERP",
    "supported_nodes": "torch.utils._pytree:SUPPORTED_NODES",
    "op_namespace": "torch._ops:_OpNamespace",
    "op_overload": "torch._ops:OpOverload",
    "op_overload_packet": "torch._ops:OpOverloadPacket",
    "dispatch_keys_include": "torch._C:_dispatch_tls_local_include_set",
    "dispatch_keys_exclude": "torch._C:_dispatch_tls_local_exclude_set",
    # plan
    "OutputGraph": "torch._dynamo.output_graph:OutputGraph",
    "DDPOptimizer": "torch._dynamo.backends.distributed:DDPOptimizer",
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
    "cpp_builder": "torch._inductor.cpp_builder:",
    "extern_kernels": "torch._inductor.select_algorithm:extern_kernels",
    "OpOverload": "torch._ops:OpOverload",
    "OpOverloadPacket": "torch._ops:OpOverloadPacket",
    "OpNamespace": "torch._ops:_OpNamespace",
    "Ops": "torch._ops:_Ops",
    "align_inputs_from_check_idxs": "torch._inductor.utils:align_inputs_from_check_idxs",
    "maybe_handle_backward_generation": (
        "torch._inductor.output_code:maybe_handle_backward_generation"
    ),
    "ConstantVariable": "torch._dynamo.variables.constant:ConstantVariable",
    "TensorVariable": "torch._dynamo.variables.tensor:TensorVariable",
    "TorchInGraphFunctionVariable": "torch._dynamo.variables.torch:TorchInGraphFunctionVariable",
    "AttrSource": "torch._dynamo.source:AttrSource",
    "DictGetItemSource": "torch._dynamo.source:DictGetItemSource",
    "GuardBuilder": "torch._dynamo.guards:GuardBuilder",
    "install_guard": "torch._dynamo.guards:install_guard",
    "UserDefinedClassVariable": "torch._dynamo.variables.user_defined:UserDefinedClassVariable",
    "CachingAutotuner": "torch._inductor.runtime.triton_heuristics:CachingAutotuner",
    "PersistentCache": "torch._inductor.codecache:PersistentCache",
    "pad_mm": "torch._inductor.fx_passes.pad_mm",
    "GridExpr": "torch._inductor.runtime.triton_heuristics:GridExpr",
    "MultiKernelCall": "torch._inductor.codegen.multi_kernel:MultiKernelCall",
    "StaticTritonCompileResult": (
        "torch._inductor.runtime.triton_heuristics:StaticTritonCompileResult"
    ),
    "TritonCompileResult": "torch._inductor.runtime.triton_heuristics:TritonCompileResult",
    "StaticTritonKernel": (
        "torch._inductor.runtime.static_triton_launcher:StaticallyLaunchedTritonKernel"
    ),
    "get_constexprs": "torch._inductor.runtime.triton_helpers:get_constexprs",
    "triton_cache_dir": "torch._inductor.runtime.cache_dir_utils:triton_cache_dir",
    "triton_hash_to_path_key": "torch._inductor.runtime.runtime_utils:triton_hash_to_path_key",
}

# ---------------------------------------------------------------- stand-in
# What precomp.serve.standin answers without importing Dynamo (docs/standin.md).

# Module files that are loaded alone, before their package; they import nothing of the compiler.
STANDIN_ALONE: frozenset[str] = frozenset(
    {
        "torch._dynamo._trace_wrapped_higher_order_op",
        "torch._dynamo.aot_compile_types",
        "torch._dynamo.callback",
        "torch._dynamo.config",
        "torch._dynamo.external_utils",
        "torch._dynamo.types",
        "torch._inductor.compiler_bisector",
        "torch._inductor.config",
        "torch._inductor.custom_graph_pass",
        "torch._inductor.runtime",
        "torch._inductor.runtime.cache_dir_utils",
    }
)

# Stand-in submodules: importing one does not materialise the package.
STANDIN_LISTED: frozenset[str] = frozenset(
    {
        "torch._dynamo.compiled_autograd",
        "torch._dynamo.decorators",
        "torch._dynamo.polyfills",
        "torch._dynamo.trace_rules",
        "torch._dynamo.utils",
    }
)

# Names taken from the installed torch at capture: module -> names. Constants are
# used by what is taken, they are not offered as attributes of the stand-in module.
STANDIN_TAKE: dict[str, tuple[str, ...]] = {
    "torch._dynamo.decorators": (
        "_DimRange",
        "_apply_func_to_inner_tensors_of_same_dim",
        "assume_constant_result",
        "disable",
        "forbid_in_graph",
        "graph_break",
        "is_dynamo_disable_recursive",
        "mark_dynamic",
        "mark_static",
        "mark_static_address",
        "mark_unbacked",
        "maybe_mark_dynamic",
        "set_stance",
        "skip_frame",
        "step_unsupported",
    ),
    "torch._dynamo.eval_frame": (
        "DisableContext",
        "DynamoStance",
        "check_if_dynamo_supported",
        "innermost_fn",
        "is_dynamo_supported",
    ),
    "torch._dynamo.utils": (
        "_ddp_optimization_mode",
        "call_size",
        "call_storage_offset",
        "call_stride",
        "get_first_attr",
        "get_optimize_ddp_mode",
        "object_setattr_ignore_descriptor",
        "record_pregraph_bytecode_enter",
        "record_pregraph_bytecode_exit",
    ),
    "torch._dynamo.compiled_autograd": (
        "_disable",
        "active_disable_ctx",
        "compiled_autograd_enabled",
        "in_compiled_autograd_region",
    ),
}

# Statements of a module that change torch outside the compiler: the stand-in runs them, too, when
# it appears. A statement is named by the first line of its source.
STANDIN_SETUP: dict[str, tuple[str, ...]] = {
    "torch._dynamo": (
        "torch.serialization.add_safe_globals([torch._dynamo.decorators._DimRange])",
        "if torch.manual_seed is torch.random.manual_seed:",
    ),
}

# Submodules that exist as attributes because the compiler imports them: parent -> names. Torch and
# programs rely on them once an optimizer was made; the stand-in imports them on demand.
STANDIN_BESIDE: dict[str, tuple[str, ...]] = {
    "torch._decomp": ("decompositions_for_rng",),
    "torch._functorch": ("config", "deprecated", "make_functional"),
    "torch._functorch._aot_autograd": (
        "collect_metadata_analysis",
        "descriptors",
        "functional_utils",
        "graph_capture_wrappers",
        "input_output_analysis",
        "logging_utils",
        "runtime_wrappers",
        "schemas",
        "subclass_utils",
    ),
    "torch._higher_order_ops": ("triton_kernel_wrap",),
    "torch.cuda": ("_pin_memory_utils",),
    "torch.distributed": (
        "_composable",
        "_composable_state",
        "_functional_collectives",
        "_functional_collectives_impl",
        "_local_tensor",
        "_shard",
        "_state_dict_utils",
        "_symmetric_memory",
        "fsdp",
        "nn",
        "tensor",
    ),
    "torch.distributed.algorithms": ("_checkpoint", "_comm_hooks"),
    "torch.fx.experimental": (
        "_dynamism",
        "_size_hinting",
        "dynamic_spec",
        "recording",
        "symbolic_shapes",
    ),
    "torch.fx.passes": ("graph_transform_observer",),
    "torch.nn.utils": ("_expanded_weights",),
    "torch.testing._internal": ("distributed",),
    "torch.utils": ("_device", "_functools", "_pallas", "_sympy", "_triton"),
}

# Names that the stand-in ``torch._dynamo`` takes from its submodules, as the real __init__ does.
STANDIN_TOP: dict[str, str] = {
    "OptimizedModule": "torch._dynamo.eval_frame",
    "allow_in_graph": "torch._dynamo.decorators",
    "assume_constant_result": "torch._dynamo.decorators",
    "disable": "torch._dynamo.decorators",
    "forbid_in_graph": "torch._dynamo.decorators",
    "graph_break": "torch._dynamo.decorators",
    "is_compiling": "torch._dynamo.external_utils",
    "is_dynamo_disable_recursive": "torch._dynamo.decorators",
    "is_dynamo_supported": "torch._dynamo.eval_frame",
    "mark_dynamic": "torch._dynamo.decorators",
    "mark_static": "torch._dynamo.decorators",
    "mark_static_address": "torch._dynamo.decorators",
    "maybe_mark_dynamic": "torch._dynamo.decorators",
    "set_stance": "torch._dynamo.decorators",
    "skip_frame": "torch._dynamo.decorators",
    "step_unsupported": "torch._dynamo.decorators",
}

# Flags of the compiler that torch reads outside it, and that nothing but the real package sets:
# module -> names. The stand-in has them as False.
STANDIN_FLAGS: dict[str, tuple[str, ...]] = {}

# Parts of torch that precomp.serve.standin_names re-states by hand because the original needs the
# compiler: "module:definition" -> sha256 of the source it was written for.
STANDIN_WRITTEN: dict[str, str] = {
    "torch._dynamo.decorators:allow_in_graph": (
        "1b59c6ef4becfd142230acb8cdcc7942d4b8535b0bc1c89d9387e67b53d20596"
    ),
    "torch._dynamo.eval_frame:_TorchDynamoContext.__init__": (
        "442d220156b0287b99f68b6e63cbbd044880d09679cafbcba2e1e7b2cc5bec81"
    ),
    "torch._dynamo.eval_frame:_TorchDynamoContext.__enter__": (
        "f372e2e2af8f959fe5f0e9339bf65426ef46f1ee14372fd4f37672a5983dc0d7"
    ),
    "torch._dynamo.eval_frame:_TorchDynamoContext.__exit__": (
        "ad075e3a102bb5780115c51e0cc51e01895637963f814460d0886d504068b248"
    ),
    "torch._dynamo.eval_frame:_callback_from_stance": (
        "7cab65bf2983d49efd744b03fbff3238072214ee237bc310080b4eeb0eec6dc6"
    ),
    "torch._dynamo.eval_frame:_set_stance": (
        "b498b66f1ee1f825feed940b2eab8e7c3475f5a1703df73a8a54affea6d594c3"
    ),
    "torch._dynamo.trace_rules:clear_lru_cache": (
        "bbbd8301b5f8d45703667ac51ed6ce89b0c19afd424d474d0cc9040b5031aca0"
    ),
    "torch._dynamo.utils:is_compile_supported": (
        "49a904269419b9328a5342a34cd29e94218bac81b4879f1ed322d7a298558c91"
    ),
    "torch._dynamo.guards:GuardManagerType": (
        "c6b0755578a804e06032b3abd1b9cd0d73039ef6a2f2dbc064dab0cb0f9edfcc"
    ),
}

# ---------------------------------------------------------------- torch.compile

# In the __dict__ of "fx_tracing": whether torch.fx traces symbolically.
FX_TRACING_FLAG = "_is_fx_tracing_flag"

# What torch.compile does since some version:
# "module_call": Module.compile() of a module whose forward is left alone gets a frame around it
# "staticmethod": a staticmethod stays one
# "exec": a function without a source file gets no frame around it
# "grads_of_grads": where grad mode is on, a backward is connected if an argument required grad,
#   not just if a gradient does
# "constant_guards": constants that are read from classes, and defaults, are guarded
BEHAVIOUR: frozenset[str] = frozenset({"constant_guards", "exec", "grads_of_grads"})

# Attribute of a function with declared dynamic shapes; None: torch has no such declaration.
SHAPES_ATTRIBUTE: str | None = None

# ---------------------------------------------------------------- modules

# How the functions of torch._C for CUDA begin.
CUDA_FUNCTIONS = "_cuda_"
# Functions of the wrappers that Inductor generates whose only argument is the number of a GPU.
TAKES_ORDINAL: tuple[str, ...] = ("_DeviceGuard", "set_device", "_cuda_getCurrentRawStream")

# ---------------------------------------------------------------- plans

# Attribute of a tensor by which a graph tells the next one which of its sizes vary.
DYNAMIC_DIMS = "_dynamo_propagated_dynamic_indices"

# Fields of Dynamo's OutputGraph that make a plan unsupported when set, and the reason.
GRAPH_REFUSED: dict[str, str] = {
    "torch_function_subclass_inlined": "__torch_function__ of a tensor subclass was inlined",
}

# The same for the fields of AOTAutograd's ViewAndMutationMeta.
METADATA_REFUSED: dict[str, str] = {
    "act_input_indices": "inputs that are AsyncCollectiveTensor",
    "tokens": "effect tokens",
    "num_backward_tokens": "effect tokens",
    "is_rng_op_functionalized": (
        "functionalized RNG (torch._functorch.config.functionalize_rng_ops)"
    ),
    "num_graphsafe_rng_states": "graph-safe RNG states",
    "mutated_inp_stream_indices": "mutated inputs on user streams",
}

# Field of its OutputAliasInfo: whether the output takes part in the backward.
TANGENT_FIELD = "requires_grad_for_backward"

# The same as METADATA_REFUSED for the fields of its InputAliasInfo.
INPUT_REFUSED: dict[str, str] = {}

# ---------------------------------------------------------------- attributes

# Private attributes that objects.py reads or sets -> the source file of torch that has them.
ATTRIBUTES: dict[str, str] = {
    "_abstract_fn": "_library/custom_ops.py",
    "_autograd_function_id": "_functorch/_aot_autograd/runtime_wrappers.py",
    "_backend_fns": "_library/custom_ops.py",
    "_backward_cls": "autograd/function.py",
    "_backward_fn": "_library/custom_ops.py",
    "_call_impl": "nn/modules/module.py",
    "_cdata": "storage.py",
    "_data": "_library/simple_registry.py",
    "_defers_input_alignment": "_inductor/output_code.py",
    "_device_type": "distributed/device_mesh.py",
    "_dynamo_forbidden": "_dynamo/eval_frame.py",
    "_flatten_rank_map": "distributed/device_mesh.py",
    "_get_arg_lists": "_inductor/runtime/triton_heuristics.py",
    "_get_index": "_dynamo/source.py",
    "_infer_parameters": "nn/modules/lazy.py",
    "_init_fn": "_library/custom_ops.py",
    "_init_group": "optim/sgd.py",
    "_initialize_hook": "nn/modules/lazy.py",
    "_is_torch_compile": "_dynamo/eval_frame.py",
    "_isolate_recompiles_id": "_dynamo/eval_frame.py",
    "_layout": "distributed/device_mesh.py",
    "_lazy_forward": "_dynamo/eval_frame.py",
    "_mesh_dim_names": "distributed/device_mesh.py",
    "_one_graph": "_dynamo/convert_frame.py",
    "_opname": "_ops.py",
    "_overloadname": "_ops.py",
    "_qualified_op_name": "_ops.py",
    "_schema": "_ops.py",
    "_setup_context_fn": "_library/custom_ops.py",
    "_thread_id": "distributed/device_mesh.py",
    "_torchdynamo_inline": "_dynamo/eval_frame.py",
    "_torchdynamo_orig_backend": "_dynamo/convert_frame.py",
    "_torchdynamo_orig_callable": "_dynamo/eval_frame.py",
    "_torchdynamo_wrapper_id": "_dynamo/eval_frame.py",
    "_wrap_compiled_regions": "_inductor/output_code.py",
    "_world": "distributed/distributed_c10d.py",
    "_wrapped_call_impl": "nn/modules/module.py",
}

# Value types of torch.distributed, (module, name) -> positional and keyword arguments of their
# constructor, which are attributes, too.
CONSTRUCTORS: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("torch.distributed.tensor.placement_types", "Shard"): (("dim",), ()),
    ("torch.distributed.tensor.placement_types", "_StridedShard"): (("dim",), ("split_factor",)),
    ("torch.distributed.tensor.placement_types", "Replicate"): ((), ()),
    ("torch.distributed.tensor.placement_types", "Partial"): (("reduce_op",), ()),
    ("torch.distributed._mesh_layout", "_MeshLayout"): (("axes",), ()),
    ("torch.distributed._mesh_layout", "_FlatLayout"): (("shape", "stride"), ()),
}
