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
    # stand-in
    "get_eval_frame_callback": "torch._C._dynamo.eval_frame:get_eval_frame_callback",
    "RootGuardManager": "torch._C._dynamo.guards:RootGuardManager",
    "disable_current_modes": "torch.utils._python_dispatch:_disable_current_modes",
    "DisableTorchFunction": "torch._C:DisableTorchFunction",
    "remove_safe_globals": "torch._weights_only_unpickler:_remove_safe_globals",
    "DISABLE_JUSTKNOBS": "torch._utils_internal:DISABLE_JUSTKNOBS",
}

CAPTURE: dict[str, str] = {
    # frame
    # guards
    # plan
    # module and kernel
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
