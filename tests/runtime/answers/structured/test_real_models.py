"""SmolLM2 at a temperature at which it writes nonsense: what it completes fits its schema all the same."""

from __future__ import annotations

import json

import jsonschema
import pytest

import kukri

from ....conftest import DATA

SCHEMAS = json.loads((DATA / "structured" / "schemas.json").read_text("utf-8"))


@pytest.mark.slow
def test_what_is_complete_fits_its_schema(real_model):
    with kukri.load(real_model("smollm2"), context=1024, parallel=4) as model:
        asked = {"temperature": 1.5, "max_tokens": 120, "seed": 7}
        answers = {
            name: model.answer("Write an example.", response_format=schema, **asked)
            for name, schema in SCHEMAS.items()
        }
        n_complete = 0
        for name, answer in answers.items():
            answer.complete()
            if answer.stats.complete:
                n_complete += 1
                value = json.loads(answer.text)
                jsonschema.Draft202012Validator(SCHEMAS[name]).validate(value)
            else:
                assert answer.finish_reason == "length"
        assert n_complete >= len(SCHEMAS) - 4


@pytest.mark.slow
def test_a_form_that_does_not_bite_changes_no_token(real_model):
    with kukri.load(real_model("smollm2"), context=1024) as model:
        ids = model.encode_chat("Say hello to the world in English, in one short sentence.")
        plain = list(model.generate(ids, temperature=0, max_tokens=40))
        anything = {"type": "regex", "regex": r"(.|\n)*"}
        assert list(model.generate(ids, temperature=0, max_tokens=40, response_format=anything)) == plain
