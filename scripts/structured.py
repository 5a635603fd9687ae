"""Do answers fit their JSON schemas, and what do masks cost?

    python scripts/structured.py suite  JSON-Schema-Test-Suite/tests/draft2020-12 -m MODEL
    python scripts/structured.py answers FOLDER… -m MODEL [--count 200] [--temperature 1.5]
    python scripts/structured.py masks  FOLDER… -m MODEL

`suite` takes the schemas and instances of the JSON-Schema-Test-Suite: which schemas are supported, whether
instances that are invalid are refused, and how many of the valid ones are accepted (a form may be narrower
than its schema). `answers` has a model answer for schemas in files, at a temperature at which it writes
nonsense, and validates what is complete with the package jsonschema. `masks` follows answers made of random
tokens and prints what a mask costs.

Folders of schemas: https://github.com/guidance-ai/jsonschemabench, data/Github_easy and the like.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import regex

import kukri
from kukri.runtime.answers.structured.guided import GuidedConstraint
from kukri.runtime.answers.structured.response_format import ResponseFormat
from kukri.runtime.answers.structured.vocabulary import Vocabulary

TOLD = 2_000  # characters of a schema that the model is told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["suite", "answers", "masks"])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--count", type=int, default=200, help="schemas that are supported")
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    return {"suite": suite, "answers": answers, "masks": masks}[options.what](options)


def schemas(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """(name, schema) of the files in the folders, in an order that the seed decides. The files of a test
    suite have several."""
    paths = sorted(path for folder in options.folders for path in folder.rglob("*.json"))
    random.Random(options.seed).shuffle(paths)
    for path in paths:
        content = json.loads(path.read_text("utf-8"))
        if isinstance(content, list):
            for group in content:
                if isinstance(group, dict) and "schema" in group:
                    yield f"{path.stem}: {group['description']}", group["schema"]
        else:
            yield path.stem, content


def supported(options: argparse.Namespace) -> Iterator[tuple[str, Any, ResponseFormat]]:
    """The first `count` schemas that are supported, and their forms; a line about the others."""
    refused: Counter[str] = Counter()
    found = 0
    for name, schema in schemas(options):
        if found == options.count:
            break
        try:
            form = ResponseFormat.json_schema(schema, in_prompt=len(json.dumps(schema)) < TOLD)
        except kukri.ConstraintError as problem:
            refused[str(problem).split(" (at ")[0][:90]] += 1
            continue
        found += 1
        yield name, schema, form
    print(f"{found} schemas are supported, {sum(refused.values())} were refused:")
    for message, n in refused.most_common(8):
        print(f"  {n:4}  {message}")


def suite(options: argparse.Namespace) -> int:
    """Instances of a test suite against the masks."""
    vocabulary = Vocabulary(kukri.load_tokenizer(options.model), {0})
    counts: Counter[str] = Counter()
    for path in sorted(options.folders[0].glob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            try:
                form = ResponseFormat.json_schema(group["schema"])
                constraint = GuidedConstraint(vocabulary, form.grammar)
                constraint.masks()
            except (kukri.ConstraintError, AttributeError):
                counts["schemas that are refused"] += 1
                continue
            counts["schemas that are supported"] += 1
            for test in group["tests"]:
                fits = follows(constraint, json.dumps(test["data"], ensure_ascii=False), vocabulary)
                counts[
                    f"{'valid' if test['valid'] else 'invalid'} instances {'' if fits else 'not '}taken"
                ] += 1
                if fits and not test["valid"]:
                    print(f"WRONG {path.stem}: {group['description']}: {test['description']}")
    for what, n in sorted(counts.items()):
        print(f"{n:5}  {what}")
    return 1 if counts["invalid instances taken"] else 0


def follows(constraint: GuidedConstraint, text: str, vocabulary: Vocabulary) -> bool:
    """Whether a text is one of the form."""
    constraint.restart()
    ids = vocabulary.tokenizer.encode_within(text)
    if constraint.n_allowed(ids) < len(ids):
        return False
    for id_ in ids:
        constraint.accept(id_)
    return constraint.complete


def answers(options: argparse.Namespace) -> int:
    """Answers of a model, validated."""
    counts: Counter[str] = Counter()
    start, n_tokens = time.perf_counter(), 0
    with kukri.load(options.model, context=1536, parallel=options.parallel) as model:
        for batch in batches(supported(options), options.parallel):
            asked = []
            for i, (name, schema, form) in enumerate(batch):
                params = {"temperature": options.temperature, "max_tokens": options.max_tokens, "seed": i}
                answer = model.answer("Write an example.", response_format=form, **params)
                asked.append((name, schema, answer))
            for name, schema, answer in asked:
                try:
                    answer.complete()
                except kukri.ConstraintError as problem:
                    counts["broken off"] += 1
                    print(f"{name}: {problem}")
                    continue
                n_tokens += answer.stats.new_tokens
                counts[verdict(name, schema, answer)] += 1
            print(f"{dict(counts)}, {n_tokens} tokens in {time.perf_counter() - start:.0f} s", flush=True)
    return 1 if counts["WRONG"] else 0


def batches(items: Iterator[Any], n: int) -> Iterator[list[Any]]:
    """Lists of `n` items each."""
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == n:
            yield batch
            batch = []
    if batch:
        yield batch


def verdict(name: str, schema: Any, answer: kukri.Answer) -> str:
    """Whether an answer is complete, and fits its schema."""
    import jsonschema

    if not answer.stats.complete:
        return "cut"
    try:
        validate(json.loads(answer.text), schema)
    except jsonschema.ValidationError as problem:
        # 1.12 is no multiple of 0.01 where both are rounded to binary fractions.
        value = json.loads(answer.text, parse_float=Decimal)
        exact = json.loads(json.dumps(schema), parse_float=Decimal)
        if problem.validator != "multipleOf" or not _fits(value, exact):
            print(f"WRONG {name}: {str(problem)[:300]}\n  {answer.text[:300]!r}")
            return "WRONG"
        return "valid in decimals"
    except ValueError as problem:
        print(f"WRONG {name}: {str(problem)[:300]}\n  {answer.text[:300]!r}")
        return "WRONG"
    return "valid"


def validate(value: Any, schema: Any) -> None:
    """Raises jsonschema.ValidationError for a value that does not fit."""
    import jsonschema

    for module in (jsonschema._keywords, jsonschema._utils):
        module.re = regex  # patterns are ECMAScript's, and `re` has no \p
    default = jsonschema.Draft202012Validator
    jsonschema.validators.validator_for(schema, default=default)(schema).validate(value)


def _fits(value: Any, schema: Any) -> bool:
    import jsonschema

    try:
        validate(value, schema)
    except jsonschema.ValidationError:
        return False
    return True


def masks(options: argparse.Namespace) -> int:
    """Times of masks along answers of random tokens."""
    tokenizer = kukri.load_tokenizer(options.model)
    start = time.perf_counter()
    vocabulary = Vocabulary(tokenizer, tokenizer.end_ids)
    vocabulary.matcher(ResponseFormat.json().grammar)
    print(f"{tokenizer.vocab_size} tokens, in a trie within {time.perf_counter() - start:.2f} s")
    draw = np.random.default_rng(options.seed)
    compiling, seconds = [], []
    clock = time.thread_time  # what else runs on the machine does not count
    for _, _, form in supported(options):
        constraint = GuidedConstraint(vocabulary, form.grammar)
        start = clock()
        constraint.masks()
        compiling.append(clock() - start)
        for _ in range(options.max_tokens // 4):
            start = clock()
            (mask,) = constraint.masks()
            seconds.append(clock() - start)
            if mask is None:  # every token
                break
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            token = int(draw.choice(allowed))
            if token in tokenizer.end_ids or constraint.ended:
                break
            constraint.accept(token)
            for forced in constraint.forced():
                constraint.accept(forced)
    for what, times in (("grammars with their first mask", compiling), ("masks", seconds)):
        micro = 1e6 * np.array(times)
        shares = " ".join(f"{p}%: {np.percentile(micro, p):.0f}" for p in (50, 95, 99))
        print(f"{len(times)} {what}, µs: {shares} most: {micro.max():.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
