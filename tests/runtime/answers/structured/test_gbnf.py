"""GBNF: the texts of a grammar, and no others."""

from __future__ import annotations

import pytest

import kukri
from kukri import ConstraintError, ResponseFormat
from kukri.runtime.answers.structured.guided import GuidedConstraint
from kukri.runtime.answers.structured.vocabulary import Vocabulary

JSON = r"""
root   ::= object
value  ::= object | array | string | ("true" | "null") ws
object ::= "{" ws (
  string ":" ws value
  ("," ws string ":" ws value)*
)? "}" ws   # members
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
SUMS = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n\\u2028]+ "\\n"\n'
SIGNS = 'root ::= [^a/]x-y "é" "\\u00e9" .{2}\nx-y ::= "["+ "]"*\n'


@pytest.fixture(scope="module")
def vocabulary(tiny):
    tokenizer = kukri.load_tokenizer(tiny)
    return Vocabulary(tokenizer, tokenizer.end_ids)


@pytest.mark.parametrize(
    ("grammar", "text", "fits"),
    [
        (JSON, '{"a": [true, "x\\n\\u00e9", null], "b": {}}', True),
        (JSON, '{"a": tru}', False),
        (JSON, '{"a": "x\n"}', False),
        (SUMS, "1+2=3\n", True),
        (SUMS, "( a\t+b_1) *c =\n d\n1=2\n", True),
        (SUMS, "1+=3\n", False),
        (LIST, "- one\n- two/three [x]\n", True),
        (LIST, "- one", False),
        (LIST, "- \u2028\n", False),
        (SIGNS, "b[éé..", True),
        (SIGNS, "b[[]éé\n\n", True),
        (SIGNS, "a[ééxx", False),
        ('root ::= ([ \\t\\n] ws)? "x"\nws ::= ([ \\t\\n] ws)?\n', "  x", True),
        ('root ::= "a"{2,3} | "\\"\\\\"', "aaa", True),
        ('root ::= "a"{2,3} | "\\"\\\\"', '"\\', True),
        ('root ::= "a"{2,3} | "b"', "a", False),
        ('root ::= "x"\nunused ::= unused "y"\n', "x", True),
    ],
)
def test_texts(vocabulary, grammar, text, fits):
    constraint = GuidedConstraint(vocabulary, ResponseFormat.of_grammar(grammar).grammar)
    ids = vocabulary.tokenizer.encode_within(text)
    taken = constraint.n_allowed(ids) == len(ids)
    for id_ in ids if taken else ():
        constraint.accept(id_)
    assert (taken and constraint.complete) == fits


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a" foo', "no rule `foo`, which `root` names"),
        ('foo ::= "a"', "no rule `root`"),
        ("root ::= [a-z", "end of input"),
        ('root ::= "a"{2', "Expected"),
        ('root ::= "\\ud800"', "no character"),
    ],
)
def test_errors(grammar, message):
    with pytest.raises(ConstraintError, match=message):
        ResponseFormat.of_grammar(grammar)
