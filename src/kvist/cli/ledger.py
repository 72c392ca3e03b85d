"""One line under every answer: what it cost, and that the bytes held are the bytes expected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvist.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from kvist.runtime.answer import Answer


def ledger_line(answer: Answer) -> str:
    """Tokens, times, blocks, and held bytes beside the formula's, term by term."""
    book = answer.ledger
    times = f"TTFT {_time(answer.ttft_s)}, TPOT {_time(answer.tpot_s)}"
    if answer.tpot_s:
        times += f" ({1 / answer.tpot_s:.1f} tok/s)"
    came = f", {answer.loaded_tokens} of them from a tier" if answer.loaded_tokens else ""
    tokens = (
        f"{answer.prompt_tokens} prompt ({answer.cached_tokens} cached{came}) + {answer.completion_tokens} new tokens"
        f" [{answer.finish_reason}]"
    )
    terms = [f"{book.computed_tokens} tokens = {format_bytes(book.row_bytes)}"]
    if book.unused_slot_bytes:
        terms.append(f"{format_bytes(book.unused_slot_bytes)} unused slots of part-filled blocks")
    if book.padding_bytes:
        terms.append(f"{format_bytes(book.padding_bytes)} padding")
    agree = "equal" if book.held_bytes == book.formula_bytes else f"DIFFERS by {book.held_bytes - book.formula_bytes} B"
    held = f"{book.blocks} blocks x {format_bytes(book.block_bytes)} = {format_bytes(book.held_bytes)} held"
    return f"{tokens} | {times} | {held}; formula {' + '.join(terms)} = {format_bytes(book.formula_bytes)} ({agree})"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def answer_json(answer: Answer, *, model: str, dtype: str, kv_format: str) -> dict[str, object]:
    """The object that ``--json`` prints: times in seconds, sizes in bytes."""
    book = answer.ledger
    out: dict[str, object] = {
        "text": answer.text,
        "token_ids": list(answer.token_ids),
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "loaded_tokens": answer.loaded_tokens,
        "completion_tokens": answer.completion_tokens,
        "finish_reason": answer.finish_reason,
        "ttft_s": answer.ttft_s,
        "tpot_s": answer.tpot_s,
        "blocks_held": answer.blocks_held,
        "kv_bytes_held": answer.kv_bytes_held,
        "kv_bytes_formula": answer.kv_bytes_formula,
        "kv_row_bytes": book.row_bytes,
        "kv_unused_slot_bytes": book.unused_slot_bytes,
        "kv_padding_bytes": book.padding_bytes,
        "computed_tokens": book.computed_tokens,
        "preemptions": answer.preemptions,
        "model": model,
        "dtype": dtype,
        "kv_format": kv_format,
    }
    if answer.error:
        out["error"] = answer.error
    if answer.logprobs:
        out["logprobs"] = [
            {"token": t.token, "logprob": t.logprob, "top": [list(x) for x in t.top]} for t in answer.logprobs
        ]
    return out
