"""The official client, unchanged, with the built-in model: answers have the form of OpenAI's own server."""

QUESTION = [{"role": "user", "content": "Which port does model-boss listen on?"}]


def ask(client, **options):
    return client.chat.completions.create(model="guide", messages=QUESTION, **{"temperature": 0, **options})


def test_a_whole_answer(guide):
    answer = ask(guide)
    assert answer.object == "chat.completion"
    assert answer.model == "guide"
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert "8210" in choice.message.content
    assert choice.finish_reason == "stop"
    assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


def test_rc_1_a_streamed_answer_says_the_same(guide):
    whole = ask(guide)
    chunks = list(ask(guide, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_no_usage_chunk_unless_asked_for(guide):
    assert all(chunk.choices for chunk in ask(guide, stream=True))


def test_plain_completions(guide):
    answer = guide.completions.create(model="guide", prompt="model-boss", max_tokens=8, temperature=0)
    assert answer.object == "text_completion"
    assert answer.usage.completion_tokens <= 8
    chunks = guide.completions.create(model="guide", prompt="model-boss", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == answer.choices[0].text


def test_max_tokens_cuts(guide):
    answer = ask(guide, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3
    assert ask(guide, max_completion_tokens=3).choices[0].message.content == answer.choices[0].message.content


def test_stop_ends_before_the_word(guide):
    whole = ask(guide).choices[0].message.content
    answer = ask(guide, stop=["8210"])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == whole.split("8210")[0]


def test_greedy_and_seeded_answers_repeat(guide):
    assert ask(guide).choices[0].message.content == ask(guide).choices[0].message.content
    sampled = {"temperature": 1.2, "top_p": 0.95, "seed": 11, "max_tokens": 24}
    assert ask(guide, **sampled).choices[0].message.content == ask(guide, **sampled).choices[0].message.content


def test_a_conversation(guide):
    messages = [
        {"role": "system", "content": "You answer questions about model-boss."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [{"type": "text", "text": "What is a lease?"}]},
    ]
    answer = guide.chat.completions.create(model="guide", messages=messages, temperature=0, max_tokens=32)
    assert answer.choices[0].message.content


def test_models_list_and_retrieve(guide):
    models = guide.models.list().data
    assert all(model.object == "model" for model in models)
    # The list also has the alias `default`, the model of a request that names none.
    assert {"guide", "default"} <= {model.id for model in models}
    [model] = [model for model in models if model.id == "guide"]
    assert (model.id, model.object) == ("guide", "model")
    assert guide.models.retrieve("guide").id == "guide"


def test_rc_11_closing_a_stream_early_frees_the_model(guide):
    for _ in range(20):
        with ask(guide, stream=True) as stream:
            next(iter(stream))
    assert "8210" in ask(guide).choices[0].message.content
