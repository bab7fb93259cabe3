"""Write tests/data/pre_tokenizers.json: where llama.cpp cuts some texts, for every splitting rule that we know.

Run with llama-cpp-python installed: ``python -m tests.tokenizer.make_pre_golden``. A text's cuts are written as the
byte lengths (1, 2 or 4) of its tokens in the vocabulary of ``probe.py``.
"""

import json
import tempfile
from pathlib import Path

import llama_cpp
from gguf import GGUFWriter

from minfer_jax.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.tokenizer.probe import probe_vocabulary

DATA = Path(__file__).parents[1] / "data"


def llama_cpp_lengths(path: str, pre: str, texts: list[str]) -> list[str]:
    """Return the token lengths of each text by llama.cpp under one rule."""
    tokens, merges = probe_vocabulary(texts)
    writer = GGUFWriter(path, "llama")
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_feed_forward_length):
        add(64)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    return [
        "".join(str(len(tokens[i])) for i in model.tokenize(text.encode(), add_bos=False, special=False))
        for text in texts
    ]


def main() -> None:
    """Keep the texts of the file and write the cuts anew."""
    path = DATA / "pre_tokenizers.json"
    texts = json.loads(path.read_text())["texts"]
    with tempfile.TemporaryDirectory() as folder:
        cuts = {name: llama_cpp_lengths(f"{folder}/probe.gguf", name, texts) for name in PRE_TOKENIZERS}
    # Names that share a rule share a row.
    rules: dict[str, list[str]] = {}
    for name, rows in cuts.items():
        rules.setdefault(json.dumps(rows), []).append(name)
    result = {
        "about": "token lengths by llama.cpp; see make_pre_golden.py",
        "texts": texts,
        "rules": [{"names": names, "lengths": json.loads(rows)} for rows, names in rules.items()],
    }
    path.write_text(json.dumps(result, ensure_ascii=True, indent=0))


if __name__ == "__main__":
    main()
