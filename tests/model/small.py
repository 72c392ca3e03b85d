"""Hand-made specs with random weights."""

import torch

from kvist.kernels.matrix import Matrix
from kvist.model.weights import LayerWeights, Weights
from kvist.spec.layer import Attention, Ffn, Full, LayerSpec, Shared
from kvist.spec.model import ModelSpec
from kvist.spec.rope import Rope

HIDDEN, WIDTH, VOCAB = 48, 64, 101
HEADS = {"q_heads": 6, "kv_heads": 3, "key_dim": 20, "value_dim": 12}


def spec_of(*mixers, **changes) -> ModelSpec:
    layers = tuple(
        LayerSpec(
            index=i,
            mixer=mixer,
            **HEADS,
            attention=Attention(scale=20**-0.5, rope=Rope(16, 300.0)),
            ffn=Ffn(WIDTH),
        )
        for i, mixer in enumerate(mixers or (Full(), Full()))
    )
    return ModelSpec("tiny", HIDDEN, layers, VOCAB, 2048, **changes)


def weights_of(spec, seed=0) -> Weights:
    draw = torch.Generator().manual_seed(seed)

    def random(*shape):
        return 0.25 * torch.randn(shape, generator=draw)

    def matrix(*shape):
        return Matrix.of(random(*shape))

    def layer(spec_layer):
        rows = spec_layer.q_heads * spec_layer.key_dim
        if not isinstance(spec_layer.mixer, Shared):
            rows += spec_layer.kv_heads * (spec_layer.key_dim + spec_layer.value_dim)
        return LayerWeights(
            o=matrix(spec.hidden, spec_layer.q_heads * spec_layer.value_dim),
            gate_up=matrix(2 * WIDTH, spec.hidden),
            down=matrix(spec.hidden, WIDTH),
            attn_norm=1 + random(spec.hidden),
            ffn_norm=1 + random(spec.hidden),
            qkv=matrix(rows, spec.hidden),
        )

    embed = matrix(spec.vocab, spec.hidden)
    return Weights(embed, 1 + random(spec.hidden), matrix(spec.vocab, spec.hidden), tuple(map(layer, spec.layers)))


def tokens_of(n, seed=0):
    return torch.randint(0, VOCAB, (n,), generator=torch.Generator().manual_seed(seed)).tolist()
