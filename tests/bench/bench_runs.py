"""Small runs that several files of tests make."""

import json

import jsonschema

from kvist.bench.options import BenchOptions
from kvist.bench.schema import schema

SMALL = {
    "generated-shared-prefix": {"groups": 3, "prompts": 3, "prefix_tokens": 40, "suffix_tokens": 8, "output_tokens": 5},
    "prefix-repetition": {"groups": 2, "prompts": 4, "prefix_tokens": 16, "suffix_tokens": 16, "output_tokens": 3},
    "multi-turn": {"clients": 3, "rounds": 3, "prefix_tokens": 10, "suffix_tokens": 8, "output_tokens": 4},
    "agent": {"rounds": 3, "prefix_tokens": 40, "suffix_tokens": 8, "output_tokens": 3, "subagent_tokens": 40},
    "random": {"prompts": 8, "suffix_tokens": 20, "output_tokens": 4, "range_ratio": 0.5},
}


def options(server, workload="prefix-repetition", knobs=None, **more):
    more.setdefault("concurrency", 1)
    more.setdefault("calibrate", 0)
    return BenchOptions(url=server.url, workload=workload, knobs=knobs or SMALL[workload], **more)


def checked(report):
    """The report, after what holds for every run."""
    jsonschema.validate(json.loads(json.dumps(report.to_json(details=True))), schema())
    jsonschema.validate(json.loads(json.dumps(report.to_json())), schema())
    counts = report.requests
    assert counts.sent == counts.ok + counts.failed + counts.interrupted == len(report.details)
    assert counts.planned == counts.sent + counts.not_sent
    assert sum(e.count for e in report.errors) == counts.failed
    return report
