"""``kvist chat``: talk, fork, take back. Each turn computes only what the cache does not hold."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvist.cli import options as opt
from kvist.cli.conversation import Conversation
from kvist.cli.ledger import ledger_line
from kvist.cli.loading import load_llm
from kvist.errors import KvistError, UsageError

if TYPE_CHECKING:
    from kvist.runtime.ask import Ask
    from kvist.runtime.llm import LLM

HELP = """\
/fork      copy the conversation and go on in the copy (blocks are shared)
/switch N  go to branch N          /branches  list branches
/undo      take back the last exchange
/stats     what the cache holds and what it saved
/help      this                    /quit      leave (also Ctrl-D)"""


def command(
    ctx: typer.Context,
    system: Annotated[str | None, typer.Option("--system", help="The system message.", show_default=False)] = None,
    max_tokens: opt.MaxTokens = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    seed: opt.Seed = None,
    model: opt.Model = None,
    dtype: opt.Dtype = None,
    attention: opt.Attention = None,
    numerics: opt.Numerics = None,
    threads: opt.Threads = None,
    kv_format: opt.KvFormat = None,
    kv_memory: opt.KvMemory = None,
    kv_blocks: opt.KvBlocks = None,
    block_tokens: opt.BlockTokens = None,
    prefix_cache: opt.PrefixCache = None,
    token_budget: opt.TokenBudget = None,
    context_tokens: opt.ContextTokens = None,
    tier: opt.Tier = None,
    tier_key: opt.TierKey = None,
    tier_write: opt.TierWrite = None,
    tier_load: opt.TierLoad = None,
    tier_min_tokens: opt.TierMinTokens = None,
    config: opt.Config = None,
) -> None:
    """Chat with the model. Temperature 0.2 and top-p 0.9 unless you say otherwise."""
    settings = opt.resolve(ctx.params)
    ask = settings.ask(temperature=0.2, top_p=0.9)
    if "max_tokens" not in settings.asked:
        ask = _longer(ask)
    with load_llm(settings, quiet=False) as llm:
        _talk(llm, system, ask)


def _talk(llm: LLM, system: str | None, ask: Ask) -> None:
    if llm.built.template is None:
        llm.encode_chat([])
    print(f"{llm.built.path.name}: {llm.built.spec.context_tokens} tokens of context. /help lists commands.")
    _loop(llm, Conversation(system), ask)


def _longer(ask: Ask) -> Ask:
    from dataclasses import replace

    return replace(ask, max_tokens=512)


def _loop(llm: LLM, talk: Conversation, ask: Ask) -> None:
    while True:
        try:
            line = input(f"\n[{talk.current}] > " if len(talk.branches) > 1 else "\n> ").strip()
        except EOFError:
            print()
            return
        if line == "/quit":
            return
        try:
            if line.startswith("/"):
                _command(line, llm, talk)
            elif line:
                _turn(line, llm, talk, ask)
        except KvistError as error:
            print(f"error: {error}", file=sys.stderr)


def _turn(line: str, llm: LLM, talk: Conversation, ask: Ask) -> None:
    """One exchange. An interrupt or an error takes the whole exchange back; its blocks return to the pool."""
    talk.say("user", line)
    said: list[str] = []
    try:
        for piece in llm.stream(llm.encode_chat(talk.messages), ask):
            said.append(piece.text)
            sys.stdout.write(piece.text)
            sys.stdout.flush()
            if piece.answer is not None:
                print(f"\n[{ledger_line(piece.answer)}]", file=sys.stderr)
    except KeyboardInterrupt:
        print("\n(stopped)")
        if not "".join(said).strip():
            talk.undo()
            return
    except KvistError:
        talk.undo()
        raise
    talk.say("assistant", "".join(said))


def _command(line: str, llm: LLM, talk: Conversation) -> None:
    name, _, rest = line.partition(" ")
    if name == "/undo":
        print(f"took back: {talk.undo()}")
    elif name == "/fork":
        print(f"on branch {talk.fork()} now; its history shares every block with the branch it came from")
    elif name == "/switch":
        if not rest.strip().isdigit():
            raise UsageError(f"/switch needs a branch number, not {rest.strip()!r}", remedy="/branches lists them")
        talk.switch(int(rest))
        print(f"on branch {talk.current}, {talk.turns} turns")
    elif name == "/branches":
        for i, branch in enumerate(talk.branches):
            print(f"{'*' if i == talk.current else ' '} {i}: {sum(m['role'] == 'user' for m in branch)} turns")
    elif name == "/stats":
        from kvist.cli.stats import print_stats

        print_stats(llm)
    elif name == "/help":
        print(HELP)
    else:
        raise UsageError(f"unknown command {name}", remedy="/help lists commands")
