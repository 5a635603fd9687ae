"""SamplingParams: what each parameter may be."""

from __future__ import annotations

import math

import pytest

from kukri.runtime.engine.sampling.params import DEFAULT_SAMPLERS, SamplingParams
from kukri.runtime.engine.sampling.sampler import Sampler


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"typical_p": 1.1}, "typical_p must be between 0 and 1, not 1.1"),
        ({"typical_p": "x"}, "typical_p must be between 0 and 1, not x"),
        ({"top_n_sigma": -2}, "top_n_sigma must be -1 or more"),
        ({"xtc_probability": -0.1}, "xtc_probability must be between 0 and 1"),
        ({"xtc_threshold": math.nan}, "xtc_threshold must be between 0 and 1, not nan"),
        ({"dynatemp_range": -1}, "dynatemp_range must be 0 or more"),
        ({"dynatemp_exp": math.inf}, "dynatemp_exp must be 0 or more, not inf"),
        ({"presence_penalty": math.inf}, "presence_penalty must be between -1e"),
        ({"frequency_penalty": math.nan}, "frequency_penalty must be between -1e"),
        ({"dry_multiplier": -1}, "dry_multiplier must be between 0 and 1e"),
        ({"dry_base": 0.5}, "dry_base must be between 1 and 1e"),
        ({"dry_allowed_length": 0}, "dry_allowed_length must be a whole number, 1 or more, not 0"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n must be a whole number, -1 or more"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers must be texts or tuples of ids"),
        ({"dry_sequence_breakers": [()]}, "dry_sequence_breakers must be texts or tuples of ids"),
        ({"dry_sequence_breakers": [1]}, "dry_sequence_breakers must be texts or tuples of ids"),
        ({"dry_sequence_breakers": [(1.5,)]}, "dry_sequence_breakers must be texts or tuples of ids"),
        ({"mirostat": 1}, "mirostat must be 0 or 2, not 1 .version 1 is not supported; 2 replaces it"),
        ({"mirostat": 3}, "mirostat must be 0 or 2, not 3$"),
        ({"mirostat_lr": -0.1}, "mirostat_lr must be 0 or more"),
        ({"mirostat_ent": math.nan}, "mirostat_ent must be 0 or more, not nan"),
        ({"logit_bias": {1: math.nan}}, "logit_bias must be between -1e.* or -inf, not nan"),
        ({"logit_bias": {1: math.inf}}, "logit_bias must be between"),
        ({"logit_bias": {1: "x"}}, "logit_bias must be between"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias must be for token ids or texts, not -1"),
        ({"logit_bias": {"": 1.0}}, "logit_bias must be for token ids or texts, not ''"),
        ({"logit_bias": {1.5: 1.0}}, "logit_bias must be for token ids or texts, not 1.5"),
        ({"logit_bias": [3]}, "logit_bias must hold pairs"),
        ({"logit_bias": ["abc"]}, "logit_bias must hold pairs .* or ID=X or TEXT=X, not .'abc'"),
        ({"logit_bias": "=3"}, "logit_bias must be for token ids or texts, not ''"),
        ({"logit_bias": "a=nan"}, "logit_bias must be between"),
        ({"samplers": ["top_k", "beam"]}, "samplers has no 'beam'; there are penalties, dry, top_n_sigma"),
        ({"samplers": "top_k;;"}, "samplers has no ''"),
        ({"logprobs": -1}, "logprobs must be a whole number, 0 or more, not -1"),
        ({"prompt_logprobs": 1.5}, "prompt_logprobs must be a whole number, 0 or more, not 1.5"),
    ],
)  # fmt: skip
def test_values_out_of_range(kwargs, message):
    with pytest.raises(ValueError, match=message) as error:
        SamplingParams(**kwargs)
    assert "\n" not in str(error.value)


def test_the_ends_of_ranges():
    SamplingParams(
        typical_p=0, top_n_sigma=-1, xtc_probability=1, xtc_threshold=1, dynatemp_range=0, dynatemp_exp=0,
        presence_penalty=-2, frequency_penalty=2, dry_multiplier=0, dry_base=1, dry_allowed_length=1,
        dry_penalty_last_n=-1, dry_sequence_breakers=(), mirostat=2, mirostat_lr=0, mirostat_ent=0,
        logit_bias={0: -math.inf, "x": 1e30}, samplers=(), logprobs=0, prompt_logprobs=0,
    )  # fmt: skip


def test_samplers_have_the_names_of_llama_cpp():
    assert SamplingParams().samplers == DEFAULT_SAMPLERS
    assert SamplingParams(samplers="penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature") == (
        SamplingParams()
    )
    others = "top-k,nucleus,typical,typ,typ-p,typical-p,min-p,temp,top-n-sigma"
    assert SamplingParams(samplers=others).samplers == (
        "top_k", "top_p", "typ_p", "typ_p", "typ_p", "typ_p", "min_p", "temperature", "top_n_sigma"
    )  # fmt: skip
    assert SamplingParams(samplers="").samplers == ()
    assert SamplingParams(samplers=["top_k", " temperature"]).samplers == ("top_k", "temperature")


def test_biases_and_breakers_are_normalised():
    pairs = ((3, 1.0), ("x", -2.0))
    assert SamplingParams(logit_bias={3: 1, "x": -2}).logit_bias == pairs
    assert SamplingParams(logit_bias=[(3, 5), ("x", -2), (3, 1)]).logit_bias == pairs
    assert SamplingParams(logit_bias=["3=1", "x=-2"]).logit_bias == pairs
    assert SamplingParams(logit_bias="a=b=-inf").logit_bias == (("a=b", -math.inf),)
    assert SamplingParams(logit_bias=pairs) == SamplingParams(logit_bias={3: 1, "x": -2})
    assert hash(SamplingParams(logit_bias={3: 1})) == hash(SamplingParams(logit_bias=[(3, 1.0)]))
    assert SamplingParams(dry_sequence_breakers=["\n", [1, 2]]).dry_sequence_breakers == ("\n", (1, 2))
    assert SamplingParams(dry_sequence_breakers="ab").dry_sequence_breakers == ("ab",)


def test_an_engine_takes_no_text_but_only_where_it_would_be_used():
    with pytest.raises(ValueError, match="logit_bias is for the text ' the'; an engine takes token ids"):
        Sampler(SamplingParams(logit_bias={" the": 1}))
    with pytest.raises(ValueError, match="dry_sequence_breakers has the text"):
        Sampler(SamplingParams(dry_multiplier=1))
    for off in ({"samplers": ("top_k",)}, {"dry_penalty_last_n": 0}, {"mirostat": 2}):
        Sampler(SamplingParams(dry_multiplier=1, **off))
