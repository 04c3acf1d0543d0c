"""A provider of models on a loopback port, spoken to by the client of OpenAI's SDK: it counts what arrives."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.actors.remote import Remote, Reply, Request, serving_http

THOUGHT: Final = "CANARY-THOUGHT"

Choices = Sequence[tuple[str, Any]]


def completion(choices: Choices, text: str = "") -> Reply:
    """A good answer: calls of tools, each with arguments (a text stands as it is), and thinking beside them."""
    calls = [
        {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for number, (name, given) in enumerate(choices)
    ]
    message = {"role": "assistant", "content": text or None, "reasoning_content": THOUGHT, "tool_calls": calls or None}
    return answer({"message": message, "finish_reason": "tool_calls" if calls else "stop"})


def answer(choice: dict[str, Any] | None) -> Reply:
    """An answer with one choice, or none."""
    return Reply(
        200,
        {
            "id": "c-1",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-reported",
            "choices": [{"index": 0, **choice}] if choice else [],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        },
    )


def streamed(choices: Choices, text: str) -> Reply:
    """A good answer in pieces: thinking, words, calls."""
    pieces: list[dict[str, Any]] = [{"role": "assistant", "reasoning_content": THOUGHT}]
    pieces += [{"content": word} for word in text.split(" ")]
    pieces += [
        {"tool_calls": [{"index": n, "id": f"call-{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}]}
        for n, (name, given) in enumerate(choices)
    ]  # fmt: skip
    head = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-reported"}
    chunks: list[dict[str, Any]] = [{**head, "choices": [{"index": 0, "delta": piece}]} for piece in pieces]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return Reply(200, body.encode(), {"Content-Type": "text/event-stream"})


class Provider:
    """Answers reply by reply; the last one stands for all that follow."""

    def __init__(self, remote: Remote, *replies: Reply) -> None:
        self._remote = remote
        self.replies: Sequence[Reply] = replies
        self.model = OpenAIChatModel(
            "gpt-test", provider=OpenAIProvider(base_url=f"{remote.url}/v1", api_key="no-secret")
        )
        remote.answer = self._answer

    @property
    def requests(self) -> list[str]:
        """The texts that arrived, one for each HTTP request."""
        return [json.loads(request.body)["messages"][-1]["content"] for request in self._remote.seen]

    @property
    def bodies(self) -> str:
        """All that was sent."""
        return " ".join(request.body.decode() for request in self._remote.seen)

    def _answer(self, _: Request) -> Reply:
        return self.replies[min(len(self._remote.seen), len(self.replies)) - 1]


@contextmanager
def providing(*replies: Reply) -> Generator[Provider]:
    """Start a provider."""
    with serving_http() as remote:
        yield Provider(remote, *replies)
