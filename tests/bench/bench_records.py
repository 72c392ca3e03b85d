"""A request that went well, made by hand."""

from kvist.bench.record import Record


def record(prompt=100, ttft=1.0, **more):
    fields = {
        "name": "r", "turn": 0, "role": "", "due_s": 0.0, "sent_s": 0.0, "ttft_s": ttft, "tpot_s": 0.1, "e2e_s": 2.0,
        "itl_s": (0.1, 0.1), "prompt_tokens": prompt, "output_tokens": 3, "cached_tokens": None,
        "asked_output_tokens": 3, "optimum_tokens": 0, "knowable_tokens": 0, "alone": True,
        "events": 3, "usage_reported": True, "finish_reason": "length",
    }  # fmt: skip
    return Record(**{**fields, **more})
