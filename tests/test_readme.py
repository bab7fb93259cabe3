"""The README's Python runs as it stands, from top to bottom."""

import re
from pathlib import Path

from tests.promises import LARGEST

README = Path(__file__).parent.parent / "README.md"


def test_python_blocks_run(smol135, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["scores"][0].is_greedy and abs(names["scores"][0].logprob + 0.25808) < LARGEST  # llama.cpp's value
    assert names["out"].text.startswith(" Paris.") and " Paris.\n" in capsys.readouterr().out
    # The forward by hand gives the greedy text, too, and so does the loop.
    assert names["out"].text.startswith(names["tokenizer"].decode(names["output"])) and len(names["output"]) == 8
    tokenizer = names["model"].tokenizer
    assert tokenizer.decode([int(names["best"][0, 0]), int(names["logits"][0, -1].argmax())]) == " Paris."
