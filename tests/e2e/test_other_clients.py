"""Clients that are built on others: LangChain's and LlamaIndex's classes for OpenAI, unmodified."""
import pytest

from api_client import post
from conftest import seconds

pytestmark = pytest.mark.full

HELLO = [{"role": "user", "content": "Say hello."}]


def chat(mesh):
    return post(mesh, "/v1/chat/completions", {"messages": HELLO, "temperature": 0, "max_tokens": 8})["choices"][0]["message"]["content"]


@pytest.mark.parametrize("responses", [False, True])
def test_langchain(mesh, responses):
    langchain = pytest.importorskip("langchain_openai", reason="make venv-full installs langchain-openai")
    model = langchain.ChatOpenAI(base_url=mesh.url + "/v1", api_key="none", model="default", temperature=0, max_tokens=8, max_retries=0,
                                 timeout=seconds(120), use_responses_api=responses)
    assert model.invoke("Say hello.").text == chat(mesh)
    assert "".join(chunk.text for chunk in model.stream("Say hello.")) == chat(mesh)


def test_llama_index(mesh):
    llama_index = pytest.importorskip("llama_index.llms.openai_like", reason="make venv-full installs llama-index-llms-openai-like")
    model = llama_index.OpenAILike(api_base=mesh.url + "/v1", api_key="none", model="default", temperature=0, max_tokens=8, max_retries=0,
                                   timeout=seconds(120), is_chat_model=True)
    assert model.complete("Say hello.").text == chat(mesh)
    assert "".join(part.delta or "" for part in model.stream_complete("Say hello.")) == chat(mesh)
