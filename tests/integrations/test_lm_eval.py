"""The model type inside the harness: its contract, its cache, chats, limits and errors."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import minfer_jax as mj
from minfer_jax.errors import ArgumentError, ChatTemplateError, ContextLengthError
from minfer_jax.load import load
from tests.promises import rounding

pytest.importorskip("lm_eval", reason="needs the extra: pip install '.[eval]'")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.model import CachingLM, TemplateLM  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402

from minfer_jax.integrations.lm_eval import MinferLM  # noqa: E402

USER = {"role": "user", "content": "Hi"}


def asks(*requests: tuple[Any, ...]) -> list[Instance]:
    """Requests of a task, one per document."""
    return [Instance("loglikelihood", {}, request, 0, ("t", i, 1)) for i, request in enumerate(requests)]


@pytest.fixture(scope="module")
def lm(smol_model: mj.Model) -> MinferLM:
    return MinferLM(smol_model)


@pytest.fixture(scope="module")
def tiny(tiny_gguf) -> MinferLM:
    return MinferLM(tiny_gguf("llama"))


def test_the_harness_finds_it_by_name_and_makes_it_from_a_string(tiny_gguf) -> None:
    made = get_model("minfer_jax").create_from_arg_string(
        f"pretrained={tiny_gguf('llama')},n_ctx=64,max_gen_toks=7,precision=exact",
        {"batch_size": "4", "max_batch_size": None, "device": "cuda:0"},
    )
    assert isinstance(made, MinferLM)
    assert (made.max_length, made.max_gen_toks, made.batch_size) == (64, 7, 4)
    assert get_model("minfer_jax").create_from_arg_obj({"pretrained": tiny_gguf("llama")}, {}).batch_size == 16
    assert MinferLM(made.model, batch_size="auto:3").batch_size == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_length": 64}, "max_length is no argument"),
        ({"n_ctx": 64}, "n_ctx is given with a model"),
        ({"batch_size": "many"}, "batch_size is 'many'"),
        ({"max_gen_toks": 0}, "max_gen_toks is 0"),
        ({"batch_tokens": "all"}, "batch_tokens is 'all'"),
    ],
)
def test_an_argument_that_is_not_ours_is_one_line(tiny: MinferLM, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        MinferLM(tiny.model, **arguments)


def test_loglikelihood_is_score_in_the_order_of_requests(lm: MinferLM, smol_model: mj.Model) -> None:
    pairs = [
        ("a", " b c d e f g"),
        ("The capital of France is", " Paris"),
        ("", "Paris is big"),
        ("The capital", " of"),
    ]
    expected = [(score.logprob, score.is_greedy) for score in mj.score(smol_model, pairs)]
    assert lm.loglikelihood(asks(*pairs), disable_tqdm=True) == expected
    assert lm.loglikelihood([]) == lm.loglikelihood_rolling([]) == lm.generate_until([]) == []


def test_s02_ids_of_a_pair_are_the_harness_s(lm: MinferLM) -> None:
    pairs = [("Answer:", " Rome"), ("Answer: ", "Rome"), ("Hello", "  world"), ("price: 12", "34"), ("Hi 👍", "🏽!")]
    for context, continuation in pairs:
        assert lm._encode_pair(context, continuation) == TemplateLM._encode_pair(lm, context, continuation)
    assert lm._encode_pair("Answer: ", "Rome") == lm._encode_pair("Answer:", " Rome")


def test_s02_a_continuation_inside_a_token_is_an_error_before_anything_runs(lm: MinferLM) -> None:
    requests = asks(("Once upon a", " time"), ("She lived happily in a", "t"))
    with pytest.raises(ArgumentError, match="task t, document 1: request 1: 't' has no token .* swallows"):
        lm.loglikelihood(requests)
    with pytest.raises(ArgumentError, match="document 0: request 0: '' has no token to score: it is empty"):
        lm.loglikelihood(asks(("a", "")))


def test_s02_a_continuation_that_begins_inside_a_token_is_told(lm: MinferLM, caplog) -> None:
    lm.loglikelihood(asks(("The word is un", "believable"), ("a", " b")))
    assert "1 of 2 continuations begin inside a token" in caplog.text


def test_s03_long_contexts_are_cut_on_the_left_and_told(smol135: Path, caplog) -> None:
    short = MinferLM(load(smol135, n_ctx=32))
    context = " word" * 100
    ids = short.tok_encode(context), short.tok_encode(" and the end")
    answer = short.loglikelihood(asks((context, " and the end")))
    assert "1 of 1 contexts lost ids on their left, to fit n_ctx 32" in caplog.text
    (expected,) = mj.score_tokens(short.model, [(ids[0][-(33 - len(ids[1])) :], ids[1])])
    assert answer == [(expected.logprob, expected.is_greedy)]
    with pytest.raises(ContextLengthError, match="document 0: request 0: the continuation has 100 tokens"):
        short.loglikelihood(asks(("a", context)))


def test_rolling_is_the_protocol_and_an_empty_text_is_zero(lm: MinferLM, smol_model: mj.Model) -> None:
    texts = ["Bees make honey, and bears like it.", "", "for i in range(10):\n"]
    first, empty, last = lm.loglikelihood_rolling(asks(*((text,) for text in texts)))
    assert empty == 0.0
    for text, answer in ((texts[0], first), (texts[2], last)):
        expected = mj.perplexity(smol_model, text, protocol="rolling").logprob
        assert answer == pytest.approx(expected, abs=rounding(smol_model, 1e-3), rel=0)


def test_rolling_reads_windows_of_all_documents_together(smol135: Path) -> None:
    short = MinferLM(load(smol135, n_ctx=16))
    texts = ["One two three four five six. " * 5, "Seven.", "Eight nine ten eleven. " * 9]
    together = short.loglikelihood_rolling(asks(*((text,) for text in texts)))
    same = {"abs": rounding(short.model, 1e-3), "rel": 0}
    assert together == pytest.approx([short.loglikelihood_rolling(asks((text,)))[0] for text in texts], **same)
    assert together[0] == pytest.approx(mj.perplexity(short.model, texts[0], protocol="rolling").logprob, **same)


def test_bos_stands_before_every_text_once(tiny_gguf) -> None:
    # A vocabulary that wants BOS: spelt out in the text or by the policy, there is one.
    model = load(tiny_gguf("gemma3"))
    bos = model.tokenizer.bos_id
    assert model.tokenizer.add_bos and bos is not None
    lm = MinferLM(model)
    spelt = model.tokenizer.token_text(bos)
    assert lm.prefix_token_id == bos
    assert (
        lm.tok_encode("the") == lm.tok_encode(spelt + "the") == [bos, *lm.tok_encode("the", add_special_tokens=False)]
    )
    assert lm.loglikelihood(asks(("the", " the"))) == lm.loglikelihood(asks((spelt + "the", " the")))
    assert lm.loglikelihood(asks(("", "the"))) == lm.loglikelihood(asks((spelt, "the")))
    assert lm.loglikelihood_rolling(asks(("the the",))) == lm.loglikelihood_rolling(asks((spelt + "the the",)))


# ---- generation


def test_generation_is_ours_whatever_runs_beside(lm: MinferLM, smol_model: mj.Model) -> None:
    greedy = {"until": ["\n"], "max_gen_toks": 8}
    prompts = ["The capital of France is", "One, two, three, four,", "a", "Once upon a time"]
    requests = asks(
        *((prompt, greedy) for prompt in prompts), ("One, two, three,", {"until": ",", "max_new_tokens": 3})
    )
    together = lm.generate_until(requests)
    for request, text in zip(requests[:4], together, strict=False):
        stop = ["\n", "<|im_end|>"]
        out = mj.generate(smol_model, request.args[0], max_tokens=8, sampler=mj.Sampler(temperature=0), stop=stop)
        assert text == out.text
    assert MinferLM(smol_model, batch_size=1).generate_until(requests) == together
    assert together[4] == " four"


def test_sampling_follows_the_seed(lm: MinferLM, smol_model: mj.Model) -> None:
    wanted = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 1.5}
    requests = asks(*[("Once upon a time", wanted)] * 3)
    drawn = lm.generate_until(requests)
    assert len(set(drawn)) == 3  # repeats of one request are different draws
    assert lm.generate_until(requests) == drawn
    assert MinferLM(smol_model, seed=5).generate_until(requests) != drawn
    one_by_one = MinferLM(smol_model, batch_size=1).generate_until(requests)
    assert len(set(one_by_one)) == 3


def test_do_sample_false_wins_over_a_temperature(lm: MinferLM) -> None:
    plain = {"until": ["\n"], "max_gen_toks": 6}
    requests = asks(("The sky", plain), ("The sky", plain | {"do_sample": False, "temperature": 0.7, "top_p": 0.9}))
    first, second = lm.generate_until(requests)
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_beams": 4}, "num_beams=4 is not supported"),
        ({"max_gen_toks": 256}, "max_gen_toks is 256 and the context window 256"),
        ({"until": [3]}, "stop is"),
        ({"temperature": -1, "do_sample": True}, "temperature is -1"),
    ],
)
def test_generation_arguments_that_we_lack_are_one_line(tiny: MinferLM, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        tiny.generate_until(asks(("the", {"until": [], "max_gen_toks": 4, **arguments})))
    assert tiny.generate_until(asks(("the", {"until": [], "max_gen_toks": 4, "num_beams": 1, "use_cache": True})))


def test_long_prompts_leave_room_for_the_answer(smol135: Path, caplog) -> None:
    short = MinferLM(load(smol135, n_ctx=32))
    prompt = "One, two, three, four, five, six. " * 10
    (text,) = short.generate_until(asks((prompt, {"until": [], "max_gen_toks": 8})))
    assert "1 of 1 contexts lost ids" in caplog.text
    ids = short.tok_encode(prompt)[-24:]
    out = mj.generate(short.model, ids, max_tokens=8, sampler=mj.Sampler(temperature=0))
    assert text == out.text and len(out.tokens) == 8


def test_what_stands_before_the_end_of_thinking_is_dropped(lm: MinferLM, smol_model: mj.Model) -> None:
    request = asks(("One, two, three,", {"until": ["\n"], "max_gen_toks": 12}))
    (whole,) = lm.generate_until(request)
    (answer,) = MinferLM(smol_model, think_end_token=" five,").generate_until(request)
    assert " five," in whole and answer == whole.split(" five,")[-1].lstrip()


# ---- chats


def test_a_chat_is_the_template_s_and_has_one_bos(lm: MinferLM, smol_model: mj.Model) -> None:
    text = lm.apply_chat_template([USER])
    assert text == smol_model.tokenizer.render_chat([USER])
    assert lm.tok_encode(text) == smol_model.tokenizer.encode_chat([USER])
    assert lm.chat_template(True) == smol_model.tokenizer.chat_template
    assert lm.chat_template(False) is None


def test_a_last_message_that_is_to_be_continued_stays_open(lm: MinferLM) -> None:
    closed = lm.apply_chat_template([USER])
    for content in ("My answer:", "My answer: "):
        opened = lm.apply_chat_template([USER, {"role": "assistant", "content": content}], add_generation_prompt=False)
        assert opened == closed + content


def test_a_template_that_knows_no_system_role_goes_without(lm: MinferLM, monkeypatch, caplog) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m.content }}]{% endfor %}"
    )
    monkeypatch.setattr(lm._chat, "_template", template)
    system = {"role": "system", "content": "Be brief."}
    assert lm.apply_chat_template([system, USER]) == "[Hi]"
    assert "no system" in caplog.text and "left out" in caplog.text
    with pytest.raises(ChatTemplateError, match="no system"):
        lm.apply_chat_template([system])


def test_an_unknown_template_and_none_at_all_are_one_line(lm: MinferLM, tiny: MinferLM) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template named 'rag'"):
        lm.chat_template("rag")
    assert lm.chat_template("default") == lm.chat_template(True)
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tiny.apply_chat_template([USER])


# ---- caches and provenance


def test_answers_are_cached_as_they_come_and_read_again(tiny: MinferLM, tmp_path: Path, monkeypatch) -> None:
    requests = asks(("the", " the"), ("a", " the the"))
    texts = asks(("the the the",), ("",))
    prompts = asks(("the", {"until": [], "max_gen_toks": 3}))
    cached = CachingLM(tiny, str(tmp_path / "answers.db"))
    first = cached.loglikelihood(requests), cached.loglikelihood_rolling(texts), cached.generate_until(prompts)
    for name in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        monkeypatch.setattr(tiny, name, lambda _: pytest.fail("asked again"))
    again = CachingLM(tiny, str(tmp_path / "answers.db"))
    assert (again.loglikelihood(requests), again.loglikelihood_rolling(texts), again.generate_until(prompts)) == first


def test_what_was_answered_before_a_stop_is_kept(tiny: MinferLM, tmp_path: Path, monkeypatch) -> None:
    cached = CachingLM(tiny, str(tmp_path / "answers.db"))
    monkeypatch.setattr(tiny, "_warn_of_cut", lambda *_: pytest.fail("stopped"))
    with pytest.raises(pytest.fail.Exception, match="stopped"):
        cached.loglikelihood(asks(("the", " the")))
    monkeypatch.setattr(tiny, "loglikelihood", lambda _: pytest.fail("asked again"))
    ((logprob, _),) = cached.loglikelihood(asks(("the", " the")))
    assert logprob < 0


def test_a_cache_of_another_model_or_setting_is_refused(tiny: MinferLM, tiny_gguf, tmp_path: Path) -> None:
    path = str(tmp_path / "answers.db")
    CachingLM(tiny, path).loglikelihood(asks(("the", " the")))
    CachingLM(MinferLM(tiny_gguf("llama")), path)
    thinking = MinferLM(tiny_gguf("llama"), think_end_token="the")
    for other in (MinferLM(tiny_gguf("qwen2")), MinferLM(tiny_gguf("llama"), n_ctx=128), thinking):
        with pytest.raises(ArgumentError, match="answers.db holds answers of another model"):
            CachingLM(other, path)
    foreign = CachingLM(MinferLM(tiny_gguf("llama")), str(tmp_path / "foreign.db"))
    foreign.dbdict.clear()
    foreign.dbdict["a hash"] = (-1.0, False)
    with pytest.raises(ArgumentError, match="foreign.db"):
        CachingLM(tiny, str(tmp_path / "foreign.db"))


def test_names_and_results_say_which_file_it_was(tiny: MinferLM, tiny_gguf) -> None:
    info = tiny.get_model_info()
    assert info["model_sha"] == tiny.model.sha256() and info["minfer_jax"]["n_ctx"] == 256
    json.dumps(info)
    assert tiny.tokenizer_name.startswith("llama.gguf-" + info["model_sha"][:16])
    others = [MinferLM(tiny_gguf("qwen2")), MinferLM(tiny.model, chat_template_args={"enable_thinking": False})]
    assert len({tiny.tokenizer_name, *(other.tokenizer_name for other in others)}) == 3


def test_evaluation_imports_no_torch(tiny_gguf) -> None:
    probe = (
        "import sys, lm_eval\n"
        "from minfer_jax.integrations.lm_eval import MinferLM\n"
        "lm_eval.simple_evaluate\n"
        f"MinferLM({str(tiny_gguf('llama'))!r})\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_task_s_results_hold_the_provenance(tiny: MinferLM, evaluate) -> None:
    results = evaluate(tiny, ["choice"], limit=3)
    assert results["config"]["model_sha"] == tiny.model.sha256()
    assert 0 <= results["results"]["mj_choice"]["acc,none"] <= 1
    answered = results["samples"]["mj_choice"][0]["resps"]
    assert all(math.isfinite(logprob) for ((logprob, _),) in answered)
