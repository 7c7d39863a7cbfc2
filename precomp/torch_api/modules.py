"""Names of private modules of torch, for code that asks whether something is of one of them, or
imports one itself, late. Importing this file imports nothing."""

from __future__ import annotations

DYNAMO = "torch._dynamo"
BISECTOR = "torch._inductor.compiler_bisector"
CACHE_SIZE = "torch._dynamo.cache_size"
CONFIG = "torch._dynamo.config"
CONVERT_FRAME = "torch._dynamo.convert_frame"
DECORATORS = "torch._dynamo.decorators"
EVAL_FRAME = "torch._dynamo.eval_frame"
EXTERNAL_UTILS = "torch._dynamo.external_utils"
GUARDS = "torch._dynamo.guards"
POLYFILLS = "torch._dynamo.polyfills"
TRACE_RULES = "torch._dynamo.trace_rules"
DYNAMO_UTILS = "torch._dynamo.utils"

INDUCTOR = "torch._inductor"
ASYNC_COMPILE = "torch._inductor.async_compile"
ASYNC_FX = "torch._inductor.compile_fx_async"
CACHE_DIRS = "torch._inductor.runtime.cache_dir_utils"
COMPILE_FX = "torch._inductor.compile_fx"
CUDAGRAPH_TREES = "torch._inductor.cudagraph_trees"

CORE = "torch._C"
EVALUATOR = "torch._C._dynamo.eval_frame"
FUNCTIONS_OF_NN = "torch._C._nn"

FAKE_TENSOR = "torch._subclasses.fake_tensor"
FUNCTIONAL_TENSOR = "torch._subclasses.functional_tensor"
FX_GRAPH = "torch.fx.graph_module"
HIGHER_ORDER_UTILS = "torch._higher_order_ops.utils"
MODULE = "torch.nn.modules.module"
ONNX_EXTRACTOR = "torch.onnx._internal.fx.dynamo_graph_extractor"
TRITON_UTILS = "torch.utils._triton"
FULLY_SHARD = "torch.distributed.fsdp._fully_shard._fully_shard"

# Packages that a prepared process never imports.
COMPILERS = (
    DYNAMO,
    INDUCTOR,
    "torch._functorch",
    "torch.fx",
    "torch.utils._sympy",
    "sympy",
    "triton",
)
# Those that the stand-in answers for.
STANDIN = (DYNAMO, INDUCTOR)
# Modules of torch whose functions and objects tell where a rank is.
RANKS = (
    "torch.distributed.distributed_c10d",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor",
    "torch.distributed._functional_collectives",
)
# What torch scripts by itself, when eager forward-mode autograd is first used.
SCRIPTED = ("torch._decomp.", "torch._refs.")


def source_file(root: str, module: str) -> str:
    """The source file of *module*, which is not imported; *root* is torch's directory."""
    return "/".join([root.rstrip("/"), *module.split(".")[1:]]) + ".py"
