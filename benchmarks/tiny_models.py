"""Models of transformers, tiny and with random weights, made from their configuration classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

VOCABULARY = 99
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
}
CAUSAL = {**SMALL, "num_key_value_heads": 1, "max_position_embeddings": 64}


def tokens(length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCABULARY, (2, length), generator=generator)


def causal(length: int) -> dict[str, Any]:
    batch = tokens(length)
    return {"input_ids": batch, "labels": batch}


def classified(length: int) -> dict[str, Any]:
    return {"input_ids": tokens(length), "labels": torch.tensor([0, 1])}


def image(length: int) -> dict[str, Any]:
    del length  # one size only: more images in place of longer ones
    return {"pixel_values": torch.ones(2, 3, 32, 32), "labels": torch.tensor([0, 1])}


def pairs(length: int) -> dict[str, Any]:
    return {
        "input_ids": tokens(length),
        "pixel_values": torch.ones(2, 3, 32, 32),
        "return_loss": True,
    }


def speech(length: int) -> dict[str, Any]:
    batch = tokens(length)
    return {"input_features": torch.ones(2, 8, 40), "labels": batch}


def hidden_states(model: torch.nn.Module, input_ids: torch.Tensor) -> torch.Tensor:
    """A function to compile: what BertModel, GPT2Model and their like compute."""
    return model(input_ids).last_hidden_state


@dataclass(frozen=True)
class Case:
    """One model: ``make()`` builds it, ``batch(length)`` gives arguments with labels."""

    model: str
    config: str
    values: dict[str, Any] = field(default_factory=dict)
    batch: Callable[[int], dict[str, Any]] = causal
    length: int = 12

    def make(self) -> torch.nn.Module:
        import transformers

        config = getattr(transformers, self.config)(**self.values)
        return getattr(transformers, self.model)(config)


IMAGE = {**{k: v for k, v in SMALL.items() if k != "vocab_size"}, "image_size": 32, "patch_size": 8}
T5 = {
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 16,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 0,
}
WHISPER = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
CLIP = {"text_config": {**SMALL, "max_position_embeddings": 64}, "vision_config": IMAGE}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "state_size": 4}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": VOCABULARY}

CASES = {
    "bert": Case("BertForSequenceClassification", "BertConfig", SMALL, classified),
    "clip": Case("CLIPModel", "CLIPConfig", CLIP, pairs),
    "deberta": Case("DebertaV2ForSequenceClassification", "DebertaV2Config", SMALL, classified),
    "gpt2": Case("GPT2LMHeadModel", "GPT2Config", GPT2),
    "llama": Case("LlamaForCausalLM", "LlamaConfig", CAUSAL),
    "mamba": Case("MambaForCausalLM", "MambaConfig", MAMBA, length=5),
    "mixtral": Case("MixtralForCausalLM", "MixtralConfig", {**CAUSAL, "num_local_experts": 4}),
    "qwen2": Case("Qwen2ForCausalLM", "Qwen2Config", CAUSAL),
    "roberta": Case("RobertaForSequenceClassification", "RobertaConfig", SMALL, classified),
    "t5": Case("T5ForConditionalGeneration", "T5Config", T5),
    "vit": Case("ViTForImageClassification", "ViTConfig", IMAGE, image),
    "whisper": Case("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, speech),
}
