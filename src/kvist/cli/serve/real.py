"""A model from files, ready to serve; and another one in its place, later."""

from __future__ import annotations

import time
from pathlib import Path

from kvist.cli.loading import build_options
from kvist.cli.options import Settings
from kvist.cli.serve.places import real_places
from kvist.runtime.build import Built, build
from kvist.runtime.packaged import packaged_model
from kvist.runtime.swap import rebuild
from kvist.server.run import Progress
from kvist.server.served import Served
from kvist.text.chat import ChatTemplate


class Models:
    """Loads what the settings name. Owner: the command."""

    def __init__(self, settings: Settings, template: str | None) -> None:
        self._settings = settings
        self._options = build_options(settings)
        self._template = template
        self._built: Built | None = None

    def first(self, progress: Progress) -> Served:
        """The model that was named, or the packaged one."""
        path = Path(self._settings.model) if self._settings.model else packaged_model()
        self._built = build(path, self._options, on_tensor=lambda done, total: progress(done / max(1, total)))
        return self._served(self._built)

    def again(self, path: str) -> Served:
        """The model at ``path`` instead. Raises what loading raises; what was loaded before stays usable then."""
        assert self._built is not None
        self._built = rebuild(self._built, Path(path), self._options)
        return self._served(self._built)

    def _served(self, built: Built) -> Served:
        template = built.template
        if self._template is not None:
            template = ChatTemplate(self._template, *_edges(built))
        engine = built.engine
        threads, by_layer = self._options.threads, built.executor.layers_reason
        return Served(
            engine=engine,
            tokenizer=built.tokenizer,
            template=template,
            spec=built.spec,
            layout=built.layout,
            path=str(built.path),
            created_unix_s=int(time.time()),
            grammars=built.grammars,
            config=self._options.engine,
            places=real_places(built, self._options.engine.tiers),
            facts={
                "dtype": built.dtype,
                "kernels": list(built.kernels),
                "numerics": self._options.numerics,
                "threads": threads or "torch's choice",
                "weights_bytes": built.weights_bytes,
                "weight_kinds": dict(built.weight_kinds),
                **({"no_native_steps": by_layer} if by_layer else {}),
            },
        )


def _edges(built: Built) -> tuple[str | None, str | None]:
    """The texts of the tokens that a template may name: beginning and end."""
    tokenizer = built.tokenizer

    def spelled(token: int | None) -> str | None:
        return None if token is None else tokenizer.token_bytes(token, special=True).decode("utf-8", "replace")

    return spelled(tokenizer.bos_id), spelled(tokenizer.eos_ids[0] if tokenizer.eos_ids else None)
