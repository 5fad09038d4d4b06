"""Architectures of the transformers library, built small from their configs; nothing is downloaded."""

from __future__ import annotations

import os

import torch

from tests.analyze.planted import trained
from tests.corpus.healthy import LENGTH, STEPS, WIDTH, WORDS, Healthy

os.environ.setdefault("HF_HUB_OFFLINE", "1")

ARCHITECTURES: list[Healthy] = []

SMALL = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""What most configs call their sizes."""

GROUPED = {**SMALL, "num_key_value_heads": 1, "head_dim": 8}
OLD = {
    **SMALL,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "d_model": WIDTH,
    "n_layers": 2,
}
TWO_STACKS = {
    **SMALL,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "decoder_start_token_id": 1,
}
IMAGE = {
    **SMALL,
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 3,
    "num_labels": 3,
}
STAGES = {
    "image_size": 16,
    "patch_size": 2,
    "num_channels": 3,
    "num_labels": 3,
    "embed_dim": 8,
    "depths": [2, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
"""A model that shrinks its picture; its shifted windows mask each other."""
SPEECH = {
    **SMALL,
    "conv_dim": [8, 8],
    "conv_kernel": [4, 4],
    "conv_stride": [2, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_length": 2,
}


def text(side="right", labels=True, **more):
    """Sentences of two lengths, padded at one side; what is padding is not predicted."""

    def batch():
        ids = torch.randint(3, WORDS, (2, LENGTH))
        kept = torch.ones(2, LENGTH, dtype=torch.long)
        kept[1, 4:] = 0
        if side == "left":
            kept = kept.flip(1)
        ids = ids * kept
        inputs = {"input_ids": ids, "attention_mask": kept}
        if labels:
            inputs["labels"] = ids.masked_fill(kept == 0, -100)
        return inputs | {name: make() for name, make in more.items()}

    return batch


def masked_text():
    """A masked language model predicts a few words only."""
    inputs = text()()
    inputs["labels"][:, 2:] = -100
    return inputs


def two_texts():
    """An encoder reads padded text, a decoder writes padded text."""
    inputs = text()()
    return inputs | {"labels": text()()["labels"][:, :5].contiguous()}


def images():
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])}


def images_and_texts():
    kept = text(labels=False)()
    return {**kept, "pixel_values": torch.randn(2, 3, 16, 16), "return_loss": torch.tensor(True)}


def sounds():
    """Two sounds, one of them padded, with letters to recognise."""
    kept = torch.ones(2, 80, dtype=torch.long)
    kept[1, 60:] = 0
    labels = torch.tensor([[3, 4, 5], [6, 7, -100]])
    return {"input_values": torch.randn(2, 80) * kept, "attention_mask": kept, "labels": labels}


def spectrograms():
    labels = torch.randint(3, WORDS, (2, 6))
    labels[1, 4:] = -100
    return {"input_features": torch.randn(2, 8, 16), "labels": labels}


def architecture(name, config, sizes, batch, *, is_slow=False, attention=None, dtype=torch.float32, **more):
    """Add a model of the library, in training mode with dropout as configured."""

    def build():
        import transformers

        settings = getattr(transformers, config)(**{**sizes, **more})
        if attention is not None:
            settings._attn_implementation = attention
        model = getattr(transformers, name)(settings).train().to(dtype)
        feeds = [batch() for _ in range(STEPS)]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return trained(model, lambda model, **inputs: model(**inputs).loss, feeds, optimizer)

    kinds = [name] + ([attention] if attention else []) + (["bfloat16"] if dtype == torch.bfloat16 else [])
    ARCHITECTURES.append(Healthy("-".join(kinds), build, is_slow))


architecture("BertForMaskedLM", "BertConfig", SMALL, masked_text)
architecture(
    "RobertaForMaskedLM", "RobertaConfig", SMALL, masked_text, pad_token_id=1, max_position_embeddings=34
)
architecture(
    "DistilBertForMaskedLM",
    "DistilBertConfig",
    SMALL,
    masked_text,
    dim=WIDTH,
    hidden_dim=32,
    n_heads=2,
    n_layers=2,
)
architecture("AlbertForMaskedLM", "AlbertConfig", SMALL, masked_text, embedding_size=8)
architecture("ElectraForMaskedLM", "ElectraConfig", SMALL, masked_text, embedding_size=8)
architecture(
    "DebertaV2ForMaskedLM",
    "DebertaV2Config",
    SMALL,
    masked_text,
    relative_attention=True,
    position_buckets=4,
    pos_att_type=["p2c", "c2p"],
)
architecture("MPNetForMaskedLM", "MPNetConfig", SMALL, masked_text, max_position_embeddings=34, is_slow=True)
architecture(
    "ModernBertForMaskedLM",
    "ModernBertConfig",
    SMALL,
    masked_text,
    cls_token_id=1,
    sep_token_id=2,
    local_attention=4,
    is_slow=True,
)
architecture(
    "XLNetLMHeadModel",
    "XLNetConfig",
    {"vocab_size": WORDS, "d_model": WIDTH, "n_layer": 2, "n_head": 2, "d_inner": 32},
    text("left"),
    is_slow=True,
)
architecture("GPT2LMHeadModel", "GPT2Config", OLD, text("left"))
architecture("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL, text("left"))
architecture("GPTJForCausalLM", "GPTJConfig", OLD, text("left"), rotary_dim=4, is_slow=True)
architecture("LlamaForCausalLM", "LlamaConfig", GROUPED, text("left"))
architecture("MistralForCausalLM", "MistralConfig", GROUPED, text("left"), sliding_window=3)
architecture(
    "MixtralForCausalLM",
    "MixtralConfig",
    GROUPED,
    text("left"),
    num_local_experts=4,
    output_router_logits=True,
)
architecture("Qwen2ForCausalLM", "Qwen2Config", GROUPED, text("left"))
architecture(
    "Qwen3MoeForCausalLM",
    "Qwen3MoeConfig",
    GROUPED,
    text("left"),
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    is_slow=True,
)
architecture("GemmaForCausalLM", "GemmaConfig", GROUPED, text("left"))
architecture("Gemma2ForCausalLM", "Gemma2Config", GROUPED, text("left"), sliding_window=3)
architecture("PhiForCausalLM", "PhiConfig", GROUPED, text("left"))
architecture("FalconForCausalLM", "FalconConfig", OLD, text("left"), alibi=True)
architecture(
    "OPTForCausalLM", "OPTConfig", SMALL, text("left"), ffn_dim=32, word_embed_proj_dim=WIDTH, pad_token_id=0
)
architecture("BloomForCausalLM", "BloomConfig", OLD, text("left"))
architecture("MptForCausalLM", "MptConfig", OLD, text("left"), max_seq_len=32, is_slow=True)
architecture(
    "GptOssForCausalLM",
    "GptOssConfig",
    GROUPED,
    text("left"),
    num_local_experts=4,
    sliding_window=3,
    is_slow=True,
)
architecture("MambaForCausalLM", "MambaConfig", SMALL, text("left"), state_size=4, conv_kernel=3)
architecture(
    "T5ForConditionalGeneration",
    "T5Config",
    OLD,
    two_texts,
    d_kv=8,
    d_ff=32,
    num_layers=2,
    num_heads=2,
    decoder_start_token_id=0,
)
architecture("BartForConditionalGeneration", "BartConfig", TWO_STACKS, two_texts)
architecture(
    "WhisperForConditionalGeneration",
    "WhisperConfig",
    TWO_STACKS,
    spectrograms,
    num_mel_bins=8,
    max_source_positions=8,
    max_target_positions=16,
)
architecture("Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, sounds)
architecture("ViTForImageClassification", "ViTConfig", IMAGE, images)
architecture("SwinForImageClassification", "SwinConfig", STAGES, images)
architecture(
    "CLIPModel", "CLIPConfig", {}, images_and_texts, text_config=SMALL, vision_config=IMAGE, projection_dim=8
)
# The same with the other way to compute attention, which adds its masks as numbers, and in half precision.
architecture("BertForMaskedLM", "BertConfig", SMALL, masked_text, attention="eager", is_slow=True)
architecture("GPT2LMHeadModel", "GPT2Config", OLD, text("left"), attention="eager", is_slow=True)
architecture(
    "LlamaForCausalLM", "LlamaConfig", GROUPED, text("left"), attention="eager", dtype=torch.bfloat16
)
architecture(
    "OPTForCausalLM",
    "OPTConfig",
    SMALL,
    text("left"),
    ffn_dim=32,
    word_embed_proj_dim=WIDTH,
    attention="eager",
    dtype=torch.bfloat16,
)
