"""One program for each client library, as its users write it: `client_programs.py NAME URL` prints what came of it as JSON.

test_clients.py runs them in an environment of their own (`make venv-clients`), against a gateway whose model's answers are played: a call of
get_weather where one is asked for, then a text. SHORT is what the programs expect that text to be."""
import json
import os
import sys

WEATHER = "get_weather"
ASK = "How is it in Aix?"
SHORT = "Blue."
PERSON = "Ada is 36."


def get_weather(city: str, days: int = 1) -> str:
    """Looks up the weather.

    Args:
        city: Name of the city.
        days: How many days.
    """
    return f"{city}: sunny for {days}"


# --- the programs; url: without /v1 -----------------------------------------------------------------------------------------------------
def litellm(url):
    import litellm as lib
    given = {"model": "openai/default", "api_base": url + "/v1", "api_key": "none", "messages": [{"role": "user", "content": ASK}]}
    tool = {"type": "function", "function": {"name": WEATHER, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
    called = lib.completion(**given, tools=[tool]).choices[0].message.tool_calls[0].function
    said = lib.completion(**given).choices[0].message.content
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in lib.completion(**given, stream=True))
    answered = lib.responses(model="openai/default", api_base=url + "/v1", api_key="none", input=ASK)
    native = lib.completion(model="ollama_chat/default", api_base=url, messages=given["messages"]).choices[0].message.content
    messages = lib.completion(model="anthropic/default", api_base=url, api_key="none", messages=given["messages"], max_tokens=64)
    return {"call": [called.name, json.loads(called.arguments)], "texts": [
        said, streamed, answered.output[-1].content[0].text, native, messages.choices[0].message.content]}


def litellm_wrong_key(url):
    import litellm as lib
    try:
        lib.completion(model="openai/default", api_base=url + "/v1", api_key="wrong", messages=[{"role": "user", "content": ASK}], num_retries=0)
    except lib.exceptions.AuthenticationError:
        return {"error": "AuthenticationError"}
    return {}


def instructor(url):
    import instructor as lib
    import openai
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    def ask(mode):
        client = lib.from_openai(openai.OpenAI(base_url=url + "/v1", api_key="none"), mode=mode)
        return client.chat.completions.create(model="default", response_model=Person, max_retries=0, max_tokens=200, temperature=0,
                                              messages=[{"role": "user", "content": PERSON}]).model_dump()

    return {"people": [ask(lib.Mode.TOOLS), ask(lib.Mode.JSON_SCHEMA)]}


def pydantic_ai(url):
    import anthropic
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(base_url=url + "/v1", api_key="none")
    models = [OpenAIChatModel("default", provider=provider), OpenAIResponsesModel("default", provider=provider),
              AnthropicModel("default", provider=AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(base_url=url, api_key="none")))]
    return {"texts": [Agent(model, tools=[get_weather]).run_sync(ASK).output for model in models]}


def pydantic_ai_people(url):
    from pydantic import BaseModel
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Person(BaseModel):
        name: str
        age: int

    model = OpenAIChatModel("default", provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))
    settings = {"max_tokens": 200, "temperature": 0}
    return {"people": [Agent(model, output_type=kind, retries=0).run_sync(PERSON, model_settings=settings).output.model_dump()
                       for kind in (Person, NativeOutput(Person))]}


def openai_agents(url):
    import agents as lib
    import openai
    lib.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none")
    models = [lib.OpenAIResponsesModel("default", client), lib.OpenAIChatCompletionsModel("default", client)]
    tool = lib.function_tool(get_weather)
    return {"texts": [lib.Runner.run_sync(lib.Agent(name="a", model=model, tools=[tool]), ASK).final_output for model in models]}


def langgraph(url):
    from langchain.agents import create_agent
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI
    given = {"base_url": url + "/v1", "api_key": "none", "model": "default", "max_retries": 0}
    models = [ChatOpenAI(**given), ChatOpenAI(**given, use_responses_api=True), ChatOllama(base_url=url, model="default")]
    return {"texts": [create_agent(model, tools=[get_weather]).invoke({"messages": [("user", ASK)]})["messages"][-1].text for model in models]}


def langchain_embeddings(url):
    from langchain_ollama import OllamaEmbeddings
    from langchain_openai import OpenAIEmbeddings
    texts = [f"text {i}" for i in range(300)]
    ours = OpenAIEmbeddings(base_url=url + "/v1", api_key="none", model="default", check_embedding_ctx_length=False).embed_documents(texts)
    native = OllamaEmbeddings(base_url=url, model="default").embed_documents(texts)
    return {"counts": [len(ours), len(native)], "same": max(abs(a - b) for a, b in zip(ours[299], native[299])) < 1e-5}


def llama_index(url):
    from llama_index.llms.openai_like import OpenAILike
    model = OpenAILike(api_base=url + "/v1", api_key="none", model="default", max_retries=0, is_chat_model=True)
    return {"texts": [model.complete(ASK).text, "".join(part.delta or "" for part in model.stream_complete(ASK))]}


def smolagents(url):
    import smolagents as lib
    model = lib.OpenAIServerModel(model_id="default", api_base=url + "/v1", api_key="none")
    agent = lib.ToolCallingAgent(tools=[lib.tool(get_weather)], model=model, max_steps=3, verbosity_level=0)
    return {"texts": [str(agent.run(ASK))]}


def dspy(url):
    import dspy as lib
    lm = lib.LM("openai/default", api_base=url + "/v1", api_key="none", cache=False, num_retries=0)
    with lib.context(lm=lm):
        return {"texts": [lib.Predict("question -> answer")(question=ASK).answer]}


def llm(url):
    import llm as lib
    with open(os.path.join(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml"), "w", encoding="ascii") as file:
        file.write(f"- model_id: fast\n  model_name: default\n  api_base: {url}/v1\n  supports_tools: true\n")
    model = lib.get_model("fast")
    return {"texts": [model.prompt(ASK, key="none").text(), model.chain(ASK, tools=[get_weather], key="none").text()]}


def haystack(url):
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret
    given = {"api_base_url": url + "/v1", "api_key": Secret.from_token("none"), "model": "default", "max_retries": 0}
    agent = Agent(chat_generator=OpenAIChatGenerator(**given), tools=[create_tool_from_function(get_weather)])
    return {"texts": [agent.run(messages=[ChatMessage.from_user(ASK)])["messages"][-1].text]}


def strands(url):
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel
    model = OpenAIModel(client_args={"base_url": url + "/v1", "api_key": "none"}, model_id="default")
    return {"texts": [str(Agent(model=model, tools=[tool(get_weather)], callback_handler=None)(ASK)).strip()]}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))
