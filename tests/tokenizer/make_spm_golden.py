"""Write tests/data/spm_ids.json: llama.cpp's ids for texts in the vocabulary of ``spm_vocabulary.py``.

Run with llama-cpp-python installed: ``python -m tests.tokenizer.make_spm_golden``.
"""

import itertools
import json
import tempfile
from pathlib import Path

import llama_cpp
from gguf import GGUFWriter

from tests.tokenizer.spm_vocabulary import spm_vocabulary

TEXTS = [
    "the quick brown fox jumps over the lazy dog.",
    " the  quick   brown    fox",
    "ababababa abab",
    "naïve über 1212 €🙂 you",
    "a<tag>b<tagged>the\n\nfox\n",
    "<s>the</s> <|turn|>the fox<|turn|><tag>",
    "<tag",
    " ",
    "",
    "▁the▁▁",
]


def main() -> None:
    """Tokenise every text with and without space prefix, plain and with special tokens."""
    rows = []
    tokens, scores, types = spm_vocabulary()
    for prefix in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            writer = GGUFWriter(f"{folder}/spm.gguf", "llama")
            for add in (writer.add_context_length, writer.add_embedding_length, writer.add_feed_forward_length):
                add(64)
            writer.add_block_count(1)
            writer.add_head_count(1)
            writer.add_layer_norm_rms_eps(1e-5)
            writer.add_tokenizer_model("llama")
            writer.add_token_list(tokens)
            writer.add_token_scores(scores)
            writer.add_token_types(types)
            writer.add_add_space_prefix(prefix)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.close()
            model = llama_cpp.Llama(f"{folder}/spm.gguf", vocab_only=True, verbose=False)
        for text, special in itertools.product(TEXTS, (False, True)):
            ids = model.tokenize(text.encode(), add_bos=True, special=special)
            rows.append({"text": text, "space_prefix": prefix, "parse_special": special, "ids": ids})
    path = Path(__file__).parents[1] / "data" / "spm_ids.json"
    path.write_text(json.dumps({"about": "by llama.cpp; see make_spm_golden.py", "rows": rows}, indent=0))


if __name__ == "__main__":
    main()
