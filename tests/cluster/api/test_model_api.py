"""Models, tokenising and request ids."""

import threading

import pytest

from tests.cluster.api.conftest import WINDOW, Api
from tests.cluster.openai_schema import check


async def test_models_have_the_official_form(api: Api) -> None:
    models = (await api.client.get("/v1/models")).json()
    check("ListModelsResponse", models)
    assert [model["id"] for model in models["data"]] == ["small"]
    check("Model", (await api.client.get("/v1/models/small")).json())


async def test_head_is_get_without_its_body(api: Api) -> None:
    for path in ("/v1/models", "/v1/models/small", "/v1/models/other"):
        whole, head = await api.client.get(path), await api.client.head(path)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]
    assert (await api.client.head("/v1/completions")).status_code == 405


async def test_an_unknown_model_is_not_found(api: Api) -> None:
    response = await api.client.get("/v1/models/org/other")
    assert response.status_code == 404
    check("ErrorResponse", response.json())


async def test_tokenize_and_detokenize_are_inverse(api: Api) -> None:
    text = "hello 世界 é é 👩‍🚀"
    answer = (await api.client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == WINDOW
    back = (await api.client.post("/detokenize", json={"tokens": answer["tokens"]})).json()
    assert back == {"prompt": text}


async def test_22_tokenize_gives_the_ids_that_the_engine_gets(api: Api) -> None:
    messages = [{"role": "user", "content": "hello"}]
    ids = (await api.client.post("/tokenize", json={"messages": messages})).json()["tokens"]
    await api.chat("hello")
    assert api.engine.requests[0].token_ids == ids


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"prompt": 3}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [512]}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {}),
    ],
)
async def test_bad_bodies_are_refused(api: Api, path: str, body: dict) -> None:
    response = await api.client.post(path, json=body)
    assert response.status_code == 400
    check("ErrorResponse", response.json())


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "x" * 50_000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 50_000}]}, "messages"),
        ("/detokenize", {"tokens": [0] * (WINDOW + 1)}, "tokens"),
        ("/detokenize", {"tokens": ["not looked at"] * (WINDOW + 1)}, "tokens"),
    ],
)
async def test_57_what_cannot_fit_is_refused_as_a_prompt_is_before_any_work(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str, body: dict, param: str
) -> None:
    for name in ("encode", "encode_chat", "decode"):
        monkeypatch.setattr(type(api.models._tokenizer), name, None)  # calling it would be a 500
    response = await api.client.post(path, json=body)
    assert response.status_code == 400
    check("ErrorResponse", response.json())
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert f"maximum context length is {WINDOW} tokens" in error["message"]


async def test_57_texts_longer_than_the_window_are_counted_where_they_might_have_fitted(api: Api) -> None:
    answer = (await api.client.post("/tokenize", json={"prompt": "x y " * WINDOW})).json()
    assert answer["count"] > WINDOW
    whole = {"tokens": [5] * WINDOW}  # a prompt and its answer
    assert (await api.client.post("/detokenize", json=whole)).status_code == 200


async def test_57_tokens_are_written_off_the_event_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    strings = api.models._tokenizer.token_strings
    monkeypatch.setattr(
        api.models._tokenizer, "token_strings", lambda ids: threads.append(threading.get_ident()) or strings(ids)
    )
    await api.client.post("/tokenize", json={"prompt": "hello", "return_token_strs": True})
    assert threads
    assert threading.get_ident() not in threads


async def test_39_the_request_id_is_echoed_and_never_used(api: Api) -> None:
    for _ in range(2):
        body = {"model": "small", "prompt": "a", "request_id": "mine"}
        response = await api.client.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
        assert response.headers["x-request-id"] == "mine"
    ids = [request.request_id for request in api.engine.requests]
    assert len(set(ids)) == 2
    assert not any("mine" in id for id in ids)


@pytest.mark.parametrize("request_id", ["x" * 257, "x" * 65536, "a\tb", " "])
async def test_39_request_ids_that_are_refused(api: Api, request_id: str) -> None:
    response = await api.client.get("/v1/models", headers={"x-request-id": request_id})
    assert response.status_code == (431 if len(request_id) > 256 else 400)
    check("ErrorResponse", response.json())


async def test_a_request_without_an_id_is_given_one(api: Api) -> None:
    first, second = [(await api.client.get("/v1/models")).headers["x-request-id"] for _ in range(2)]
    assert first != second
