"""From conversations to ids, going on with the very ids that the model emitted in earlier turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvist.errors import KvistError, ModelError
from kvist.server.job import Finish, Job
from kvist.server.service import Service
from kvist.text.chat import ChatTemplate
from kvist.text.tools.history import parsed_arguments, template_knows_tools, with_tools
from kvist.text.turns import Encoded, Turns

Messages = Sequence[Mapping[str, Any]]


class Memory:
    """Remembers answers that clients may send back. One per server; bounded (``Turns``)."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.turns = Turns() if service.config.keep_answers else Turns(max_tokens=0)
        self._judged: tuple[ChatTemplate, bool] | None = None

    def encode(self, job: Job, messages: Messages, tools: Messages | None, extra: Mapping[str, Any]) -> Encoded:
        """Ids of a conversation that is to be answered. Raises what ``encode_chat`` raises."""
        template = self._template()
        messages, tools = for_template(self._knows_tools(template), messages, tools)
        return self.turns.encode(
            self._scope(job),
            self._service.served.tokenizer,
            template,
            messages,
            tools=tools,
            extra=extra,
            append_only=self._service.config.append_only,
        )

    def keep(
        self,
        job: Job,
        messages: Messages,
        tools: Messages | None,
        extra: Mapping[str, Any],
        answer: Mapping[str, Any],
        ids: Sequence[int],
        finish: Finish,
    ) -> None:
        """An answer ended. One that a stop string cut has other text than its tokens: not kept."""
        if finish.reason not in ("stop", "length") or isinstance(finish.stop, str) or not job.reuse:
            return
        try:
            (*told, last), tools = for_template(self._knows_tools(self._template()), [*messages, answer], tools)
            self.turns.remember(self._scope(job), told, last, job.prompt, ids, tools=tools, extra=extra)
        except KvistError:
            return  # an answer that no template could show (half a character in a call): plain encoding will do

    def _template(self) -> ChatTemplate:
        served = self._service.served
        if served.template is None:
            raise ModelError(f"{served.path} has no chat template", remedy="use /v1/completions, or an instruct model")
        return served.template

    def _knows_tools(self, template: ChatTemplate) -> bool:
        """Whether the template reads tools; found out once, for that takes a millisecond."""
        if self._judged is None or self._judged[0] is not template:
            self._judged = template, template_knows_tools(template.source)
        return self._judged[1]

    def _scope(self, job: Job) -> bytes:
        """Whose conversations these are: as narrow as the part of the cache they may share."""
        return self._service.config.tenants.salt(job.tenant, job.salt)


def for_template(knows_tools: bool, messages: Messages, tools: Messages | None) -> tuple[Messages, Messages | None]:
    """Messages and tools as a template can show them: with calls as objects, or everything as text."""
    if knows_tools:
        return parsed_arguments(messages), tools
    if tools or any("tool_calls" in m or m.get("role") == "tool" for m in messages if isinstance(m, Mapping)):
        return with_tools(messages, tools), None
    return messages, tools
