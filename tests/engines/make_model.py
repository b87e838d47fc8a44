"""Write a tiny synthetic Llama for tests of real engines: no download, no training, the same bytes every time.

    make_model.py FOLDER gguf|safetensors [hidden=256] [layers=2] [mean_len=60] [letters=0]

``gguf`` writes ``FOLDER.gguf`` for llama.cpp, ``safetensors`` fills ``FOLDER`` for vLLM. The tokenizer is a byte-level
BPE trained on the help texts that ship with CPython.

Plain random weights would not do: llama-server answers 500 when a random control token or half a character is
sampled, and an answer would end at ``max_tokens`` only. Here residual channel 0 is constant, so the output matrix acts
as a bias: only printable ASCII comes out, and at temperature 1 the end token has the probability 1/mean_len at each
step, which gives geometric lengths like those of real traffic. The default model writes thousands of tokens a second;
``hidden=512 layers=24`` needs some ten milliseconds a token on one thread and can be overloaded on demand.

``letters=1`` mixes Cyrillic letters in, each of which is two tokens of one byte: channel 1 is there after the first of
them and lets nothing follow but one of the second, so that no half letter is ever left but where an answer is cut.

Runs in an engine's own environment, which is why it imports nothing of ours.
"""

from __future__ import annotations

import json
import math
import pydoc_data.topics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
CONTEXT = 4096
HEAD = 64
"""Size of an attention head."""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = SPECIAL.index("<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% if not (continue_final_message and loop.last) %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONSTANT = 8.0
"""Value of the constant channel."""
SPREAD = 0.5
"""Standard deviation of the other channels."""
FIRST, SECOND = 0xD0, range(0x90, 0xC0)
"""Bytes of the letters from U+0410 on, in UTF-8."""
FIRST_BIAS = 6.5
"""Makes about every fourth token begin a letter, at temperature 0 too."""

SIGMA = 2.0
"""Standard deviation of the logits: a peaked distribution, so that temperature 0 is not a tie."""

Matrix = NDArray[np.float32]
HF_NAMES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
GGUF_NAMES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Shape:
    """Size of the model, mean length of its answers in tokens, and whether it writes letters of two tokens."""

    hidden: int = 256
    layers: int = 2
    mean_len: int = 60
    letters: int = 0

    @property
    def inner(self) -> int:
        """Width of the feed-forward part."""
        return 2 * self.hidden


@dataclass(frozen=True)
class Weights:
    """Embedding, output matrix, and per layer the seven matrices in the order of the name tables."""

    embedding: Matrix
    output: Matrix
    layers: list[tuple[Matrix, ...]]


def train_tokenizer() -> Tokenizer:
    """Train the tokenizer; the training has no random part."""
    made = Tokenizer(models.BPE())
    made.decoder = decoders.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(list(pydoc_data.topics.topics.values()), trainer)
    return made


def token_names(tokenizer: Tokenizer) -> list[str]:
    """The tokens by their number."""
    names = [""] * VOCABULARY
    for name, number in tokenizer.get_vocab().items():
        names[number] = name
    return names


def make_weights(shape: Shape, names: list[str]) -> Weights:
    """Draw the weights; see the module docstring for what makes them behave."""
    hidden = shape.hidden
    rng = np.random.default_rng(0)

    def drawn(deviation: float, *size: int) -> Matrix:
        return rng.standard_normal(size, dtype=np.float32) * np.float32(deviation)

    norm = math.sqrt((CONSTANT**2 + (hidden - 1) * SPREAD**2) / hidden)
    constant, rest = CONSTANT / norm, SPREAD / norm  # after the last norm
    embedding = drawn(SPREAD, VOCABULARY, hidden)
    embedding[:, 0] = CONSTANT
    output = drawn(SIGMA / (rest * math.sqrt(hidden - 1)), VOCABULARY, hidden)
    output[:, 0] = 0
    printable = np.array([number >= len(SPECIAL) and _printable(name) for number, name in enumerate(names)])
    output[~printable] = 0
    output[~printable, 0] = -30 / constant
    output[END, 0] = (math.log(printable.sum() / (shape.mean_len - 1)) + SIGMA**2 / 2) / constant
    if shape.letters:
        _add_letters(embedding, output, names, constant, drawn(SIGMA / (rest * math.sqrt(hidden - 1)), 49, hidden))
    layers: list[tuple[Matrix, ...]] = []
    for _ in range(shape.layers):
        q, k, v, o = (drawn(hidden**-0.5, hidden, hidden) for _ in range(4))
        gate, up = (drawn(hidden**-0.5, shape.inner, hidden) for _ in range(2))
        down = drawn(shape.inner**-0.5, hidden, shape.inner)
        for back in (o, down):  # what is added to the residual stays small, and not to the channels with a meaning
            back *= np.float32(0.1)
            back[: 1 + shape.letters] = 0
        layers.append((q, k, v, o, gate, up, down))
    return Weights(embedding, output, layers)


def _add_letters(embedding: Matrix, output: Matrix, names: list[str], constant: float, rows: Matrix) -> None:
    first, second = names.index(_name(FIRST)), [names.index(_name(byte)) for byte in SECOND]
    embedding[:, 1] = 0
    embedding[first, 1] = CONSTANT
    output[[first, *second]] = rows
    output[:, 1] = -60 / constant
    output[second, 1] = 60 / constant
    output[first, 0] = FIRST_BIAS / constant
    output[second, 0] = -30 / constant


def _name(byte: int) -> str:
    """How a byte-level tokenizer writes one byte: printable ones of Latin-1 as they are, the others from U+0100 on."""
    as_they_are = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [each for each in range(0x100) if each not in as_they_are]
    return chr(byte if byte in as_they_are else 0x100 + others.index(byte))


def write_safetensors(folder: Path, shape: Shape, tokenizer: Tokenizer, weights: Weights) -> None:
    """Write the folder that vLLM and transformers load."""
    from safetensors.numpy import save_file  # only where it is needed: llama.cpp's environment has none

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    heads = shape.hidden // HEAD
    ends = {"bos_token_id": 0, "eos_token_id": END, "pad_token_id": 0}
    _write(folder / "generation_config.json", ends)
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[END],
            "pad_token": SPECIAL[0],
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    )
    _write(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.inner,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "head_dim": HEAD,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            **ends,
        },
    )
    ones = np.ones(shape.hidden, np.float16)
    tensors = {
        "model.embed_tokens.weight": _half(weights.embedding),
        "model.norm.weight": ones,
        "lm_head.weight": _half(weights.output),
    }
    for number, matrices in enumerate(weights.layers):
        start = f"model.layers.{number}."
        tensors |= {f"{start}{name}.weight": ones for name in ("input_layernorm", "post_attention_layernorm")}
        tensors |= {f"{start}{name}.weight": _half(matrix) for name, matrix in zip(HF_NAMES, matrices, strict=True)}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def write_gguf(file: Path, shape: Shape, tokenizer: Tokenizer, weights: Weights) -> None:
    """Write the file that llama.cpp loads."""
    import gguf  # only where it is needed: vLLM's environment may have none

    writer = gguf.GGUFWriter(str(file), "llama")
    _describe(writer, gguf, shape, tokenizer)
    ones = np.ones(shape.hidden, np.float32)
    writer.add_tensor("token_embd.weight", _half(weights.embedding))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", _half(weights.output))
    for number, matrices in enumerate(weights.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{number}.{name}.weight", ones)
        for name, matrix in zip(GGUF_NAMES, matrices, strict=True):
            writer.add_tensor(f"blk.{number}.{name}.weight", _half(matrix))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, gguf: Any, shape: Shape, tokenizer: Tokenizer) -> None:
    heads = shape.hidden // HEAD
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    kinds = [gguf.TokenType.CONTROL if number < len(SPECIAL) else gguf.TokenType.NORMAL for number in range(VOCABULARY)]
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(token_names(tokenizer))
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _printable(name: str) -> bool:
    return all(sign == "\u0120" or (sign.isascii() and sign.isprintable()) for sign in name)  # U+0120 is a space


def _half(matrix: Matrix) -> NDArray[np.float16]:
    return matrix.astype(np.float16)


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


def main() -> None:
    """Read the command line and write one model in one form."""
    folder, form = Path(sys.argv[1]), sys.argv[2]
    options = {name: int(value) for name, _, value in (word.partition("=") for word in sys.argv[3:])}
    shape = Shape(**options)
    tokenizer = train_tokenizer()
    weights = make_weights(shape, token_names(tokenizer))
    folder.parent.mkdir(parents=True, exist_ok=True)
    if form == "gguf":
        write_gguf(folder.with_name(folder.name + ".gguf"), shape, tokenizer, weights)
    elif form == "safetensors":
        write_safetensors(folder, shape, tokenizer, weights)
    else:
        sys.exit(f"expected gguf or safetensors, got {form}")


if __name__ == "__main__":
    main()
