"""Where a model's files keep its chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvist.errors import MissingField
from kvist.text.chat import ChatTemplate
from kvist.text.from_folder import read_json, token_text
from kvist.text.gguf_meta import read_metadata

_REMEDY = "it may be a base model: use completions, or give a template (--chat-template)"


def template_from_gguf(source: Any, *, name: str = "default") -> ChatTemplate:
    """The template of a GGUF file (a path, an open reader, or metadata already read). ``name``: ``tool_use``..."""
    meta = read_metadata(source)
    key = "tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}"
    if key not in meta:
        where = str(source) if isinstance(source, (str, Path)) else "the GGUF file"
        raise MissingField((key,), source=where, remedy=_REMEDY)
    pieces = meta.get("tokenizer.ggml.tokens", [])
    ids = [meta.get(f"tokenizer.ggml.{end}_token_id") for end in ("bos", "eos")]
    bos, eos = (pieces[n] if n is not None and n < len(pieces) else None for n in ids)
    return ChatTemplate(meta[key], bos, eos)


def template_from_folder(path: str | Path, *, name: str = "default") -> ChatTemplate:
    """``chat_template.jinja``, else what ``tokenizer_config.json`` holds under ``chat_template``."""
    folder = Path(path)
    config = read_json(folder / "tokenizer_config.json")
    tokens = read_json(folder / "special_tokens_map.json") | config
    file = folder / ("chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja")
    source = file.read_text(encoding="utf-8") if file.is_file() else _in_config(config.get("chat_template"), name)
    if source is None:
        looked = (file.name, f"chat_template ({name}) in tokenizer_config.json")
        raise MissingField(looked, source=str(folder), remedy=_REMEDY)
    return ChatTemplate(source, token_text(tokens.get("bos_token")), token_text(tokens.get("eos_token")))


def _in_config(entry: Any, name: str) -> str | None:
    if isinstance(entry, str):
        return entry if name == "default" else None
    listed = entry if isinstance(entry, list) else []
    return next((item["template"] for item in listed if item.get("name") == name), None)
