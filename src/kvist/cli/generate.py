"""``kvist generate``: continue one prompt, or several as one batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvist.cli import options as opt
from kvist.cli.ledger import answer_json, ledger_line
from kvist.cli.loading import load_llm
from kvist.errors import UsageError

if TYPE_CHECKING:
    from kvist.runtime.answer import Answer
    from kvist.runtime.ask import Ask
    from kvist.runtime.llm import LLM


def command(
    ctx: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The text to continue.", show_default=False)] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option("--prompt-file", "-f", help="Read a prompt from a file (- is stdin). Repeat it for a batch."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt in the model's chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per answer, nothing else.")] = False,
    max_tokens: opt.MaxTokens = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    logit_bias: opt.LogitBias = None,
    seed: opt.Seed = None,
    n: opt.N = None,
    stop: opt.Stop = None,
    logprobs: opt.Logprobs = None,
    ignore_eos: opt.IgnoreEos = None,
    model: opt.Model = None,
    dtype: opt.Dtype = None,
    attention: opt.Attention = None,
    numerics: opt.Numerics = None,
    threads: opt.Threads = None,
    poison: opt.Poison = None,
    kv_format: opt.KvFormat = None,
    kv_memory: opt.KvMemory = None,
    kv_blocks: opt.KvBlocks = None,
    block_tokens: opt.BlockTokens = None,
    prefix_cache: opt.PrefixCache = None,
    token_budget: opt.TokenBudget = None,
    max_sequences: opt.MaxSequences = None,
    chunk_tokens: opt.ChunkTokens = None,
    context_tokens: opt.ContextTokens = None,
    order: opt.Order = None,
    itl_slo: opt.ItlSlo = None,
    evict: opt.Evict = None,
    tier: opt.Tier = None,
    tier_key: opt.TierKey = None,
    tier_write: opt.TierWrite = None,
    tier_load: opt.TierLoad = None,
    tier_min_tokens: opt.TierMinTokens = None,
    tier_check: opt.TierCheck = None,
    tier_second_use: opt.TierSecondUse = None,
    config: opt.Config = None,
) -> None:
    """Continue a prompt. Greedy unless ``--temperature`` says otherwise; ends with a ledger line."""
    settings = opt.resolve(ctx.params)
    texts = _prompts(prompt, prompt_file or [])
    ask = settings.ask()
    if ask.sampling.logprobs is not None and not as_json:
        raise UsageError("log-probabilities are shown in JSON only", remedy="add --json")
    with load_llm(settings, quiet=as_json) as llm:
        _answer(llm, texts, prompt, prompt_file or [], ask, chat=chat, as_json=as_json)


def _answer(
    llm: LLM, texts: list[str], prompt: str | None, files: list[Path], ask: Ask, *, chat: bool, as_json: bool
) -> None:
    prompts = [llm.encode_chat([{"role": "user", "content": t}]) if chat else llm.encode(t) for t in texts]
    labels = [str(p) for p in files] if prompt is None else [""]
    if as_json:
        _print_json(llm, prompts, ask)
    elif len(prompts) == 1 and ask.n == 1:
        _print_stream(llm, prompts[0], ask)
    else:
        _print_batch(llm, prompts, labels, ask)


def _prompts(prompt: str | None, files: list[Path]) -> list[str]:
    if (prompt is None) == (not files):
        raise UsageError(
            "no prompt was given" if prompt is None else "both a prompt and --prompt-file were given",
            remedy='write kvist generate "some text", or kvist generate --prompt-file FILE',
        )
    if prompt is not None:
        return [_not_empty(prompt, "the prompt")]
    return [_not_empty(_read(f), f"the prompt file {f}") for f in files]


def _not_empty(text: str, what: str) -> str:
    if not text:
        raise UsageError(f"{what} is empty: at least one character is needed", remedy="give some text to continue")
    return text


def _read(file: Path) -> str:
    try:
        return (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start})", remedy="convert it to UTF-8") from error
    except OSError as error:
        raise UsageError(
            f"the prompt file {file} cannot be read ({error.strerror})", remedy="check the path"
        ) from error


def _print_stream(llm: LLM, prompt: tuple[int, ...], ask: Ask) -> None:
    for piece in llm.stream(prompt, ask):
        sys.stdout.write(piece.text)
        sys.stdout.flush()
        if piece.answer is not None:
            print()
            _close(piece.answer)


def _print_json(llm: LLM, prompts: list[tuple[int, ...]], ask: Ask) -> None:
    built = llm.built
    for answer in llm.generate_all(prompts, ask):
        fields: dict[str, Any] = answer_json(
            answer, model=str(built.path), dtype=built.dtype, kv_format=built.layout.format.name
        )
        fields["seed"] = ask.sampling.seed
        print(json.dumps(fields, ensure_ascii=False))
        _fail_if_error(answer)


def _print_batch(llm: LLM, prompts: list[tuple[int, ...]], labels: list[str], ask: Ask) -> None:
    for i, answer in enumerate(llm.generate_all(prompts, ask)):
        label = f"{labels[i // ask.n]} #{i % ask.n}".strip() if ask.n > 1 else labels[i // ask.n]
        print(f"{label}: {' '.join(answer.text.split())}" if label else " ".join(answer.text.split()))
        _close(answer)


def _close(answer: Answer) -> None:
    print(f"[{ledger_line(answer)}]", file=sys.stderr)
    _fail_if_error(answer)


def _fail_if_error(answer: Answer) -> None:
    if answer.finish_reason == "error":
        raise RuntimeError(answer.error)
