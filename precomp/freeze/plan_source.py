"""What one AOT compilation and one call of a Dynamo backend leave for the record of a plan."""

from __future__ import annotations

from typing import Any

import torch

from precomp import torch_api


class PlanSource:
    """What was seen of one AOT compilation: torch's metadata and Inductor's graphs, no tensors.

    ``bw`` of a training plan stays None until torch compiles the backward, at the first call of
    ``backward()``.
    """

    kind: str

    def __init__(self, kind: str, metadata: Any, aot_config: Any) -> None:
        functorch = torch_api.capture().functorch_config
        self.kind = kind
        self.metadata = metadata
        self.keep_mutations = bool(aot_config.keep_inference_input_mutations)
        self.num_params = int(aot_config.num_params_buffers)
        self.replay_views = bool(functorch.view_replay_for_aliased_outputs)
        self.donated_buffer = bool(functorch.donated_buffer)
        self.disable_autocast = False
        self.detach: tuple[int, ...] = ()
        self.subclass = False
        self.gradients: Any = None  # what each gradient is, if arguments are tensor subclasses
        self.backward_state = False
        self.fw: Any = None
        self.bw: Any = None
        self.reasons: list[str] = []


class PassGraph:
    """A graph without operations: Inductor makes no module for it."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        nodes = list(gm.graph.nodes)
        arguments = [node for node in nodes if node.op == "placeholder"]
        self.outputs: tuple[tuple[str, Any], ...] | None = None
        (returned,) = nodes[-1].args
        outputs: list[tuple[str, Any]] = []
        for value in returned:
            if isinstance(value, torch.fx.Node):
                if value not in arguments:
                    return
                outputs.append(("i", arguments.index(value)))
            elif value is None or type(value) in (bool, int, float):
                outputs.append(("c", value))
            else:
                return
        self.outputs = tuple(outputs)


class GraphSource:
    """What was seen of one call of a Dynamo backend: its plans, and why they do not suffice."""

    def __init__(self, backend: str, reasons: list[str]) -> None:
        self.name = ""
        self.backend = backend
        self.reasons = reasons
        self.graphs: list[tuple[bool, Any]] = []
        self.plans: list[PlanSource] = []
        self.split: Any = None
        self.attributes: tuple[int, ...] = ()  # ids of the tensors that the graph holds

    def take(self, backward: bool) -> Any:
        """The latest Inductor graph of that direction, removed from the pending ones."""
        for i in reversed(range(len(self.graphs))):
            if self.graphs[i][0] == backward:
                return self.graphs.pop(i)[1]
        return None
