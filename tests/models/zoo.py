"""Six transformers models, tiny and with random weights: one process, one side.

zoo.py capture|serve DIR CASE [edit]      CASE: bert, llama, t5, vit, mamba, mixtral, or CASE:train
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from contextlib import nullcontext

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
}
CAUSAL = {"num_key_value_heads": 1, "max_position_embeddings": 64, **SMALL}
IMAGE = {"image_size": 32, "patch_size": 8}

# class, config class, config
MODELS = {
    "bert": ("BertForSequenceClassification", "BertConfig", SMALL),
    "llama": ("LlamaForCausalLM", "LlamaConfig", CAUSAL),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 32,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 2,
            "d_kv": 16,
            "vocab_size": 99,
            "decoder_start_token_id": 0,
        },
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", {**SMALL, **IMAGE}),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99, "state_size": 4},
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 4, **CAUSAL}),
}
MODELS["vit"][2].pop("vocab_size")

EDITS = {
    "rotate_half": "def rotate_half(x):\n    return x * 1.5\n",
    "LlamaMLP.forward": (
        "class LlamaMLP:\n"
        "    def forward(self, x):\n"
        "        return self.down_proj(self.act_fn(self.gate_proj(x)) + self.up_proj(x))\n"
    ),
}

COMPILER = (
    "torch._dynamo.convert_frame",
    "torch._dynamo.eval_frame",
    "torch._dynamo.guards",
    "torch._inductor.compile_fx",
    "triton",
)


def inputs(torch, name: str, i: int) -> dict:
    generator = torch.Generator().manual_seed(i)
    if name == "vit":
        return {
            "pixel_values": torch.randn(2, 3, 32, 32, generator=generator),
            "labels": torch.tensor([0, 1]),
        }
    length = 5 if name == "mamba" else 12
    tokens = torch.randint(0, 99, (2, length), generator=generator)
    if name == "bert":
        return {"input_ids": tokens, "labels": torch.tensor([0, 1])}
    return {"input_ids": tokens} if name == "mamba" else {"input_ids": tokens, "labels": tokens}


def flat(torch, out) -> list:
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, dict):
        out = list(out.values())
    if isinstance(out, (list, tuple)):
        return [t for item in out for t in flat(torch, item)]
    return []


def seen(tensor) -> str:
    t = tensor.detach().contiguous()
    data = ctypes.string_at(t.data_ptr(), t.numel() * t.element_size())
    return f"{t.dtype} {tuple(t.shape)} {hashlib.sha256(data).hexdigest()[:32]}"


def run(torch, name: str, train: bool) -> list:
    import transformers

    kind, config, values = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**values)).train(train)
    compiled = torch.compile(model)
    results = []
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3) if train else None
    for i in range(3):
        batch = inputs(torch, name, i)
        if train:
            loss = compiled(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            results.append([seen(loss), *map(seen, grads)])
        else:
            with torch.no_grad():
                results.append([seen(t) for t in flat(torch, compiled(**batch))])
    results.append([seen(t) for t in model.state_dict().values()])
    results.append([seen(torch.get_rng_state())])
    return results


def apply(edit: str) -> None:
    """Change a function as an edited source file would."""
    from transformers.models.llama import modeling_llama

    names: dict = {}
    exec(compile(EDITS[edit], modeling_llama.__file__, "exec"), vars(modeling_llama), names)
    (new,) = names.values()
    if isinstance(new, type):
        getattr(modeling_llama, new.__name__).forward = new.forward
    else:
        setattr(modeling_llama, new.__name__, new)


def main() -> int:
    side, directory, case, *edits = sys.argv[1:]
    name, _, kind = case.partition(":")
    artifact = os.path.join(directory, case.replace(":", "-") + ".precomp")
    import torch

    torch.set_num_threads(1)
    import precomp

    facts: dict = {}
    if side == "capture":
        with precomp.capture(artifact):
            facts["results"] = run(torch, name, kind == "train")
    else:
        prepared = precomp.prepare(artifact)
        for edit in edits:
            apply(edit)
        gate = precomp.strict_no_compile() if side == "serve" else nullcontext()
        try:
            with gate:
                facts["results"] = run(torch, name, kind == "train")
        except precomp.CompileViolation as violation:
            facts["what"], facts["why"] = violation.what, violation.why
        facts["coverage"] = str(prepared.coverage())
    facts["compiler"] = [m for m in COMPILER if m in sys.modules]
    print(json.dumps(facts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
