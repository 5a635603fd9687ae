"""Faster ways to the same result for steps of Numba that take most of the time of long functions.

Staged kernels are long functions with thousands of variables, since loops over registers are unrolled.
Numba's SSA pass goes through the whole function once for each variable that is assigned more than once; its
lowering goes through a block for each variable to count the assignments to it; liveness is computed with sets
of names; and the type of each `a + b` is found anew among dozens of signatures, with a report of those that
do not match. A step is replaced only where Numba has it in the form that the replacement was written for;
elsewhere kernels compile as well, but more slowly.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.core.types import functions
from numba.cuda.core import analysis, ir, ssa, targetconfig

lowering: Any = importlib.import_module("numba.cuda.lowering")
# The first digits of SHA-256 of the sources that the replacements were written for.
_WRITTEN_FOR = {
    "ssa": "e4ef931257e4dcde",
    "singly_assigned": "c3b499f765172885",
    "live_map": "cdb51290c1658e92",
    "call_type": "5676bbe5a63af00a",
    "equal": "17098e5cedf16794",
}


def quicken() -> None:
    """Replace the steps, once in a process."""
    if _is_known("ssa", inspect.getsource(ssa)):
        ssa._run_ssa = _run_ssa
    step: Any = lowering.Lower._find_singly_assigned_variable
    if _is_known("singly_assigned", inspect.getsource(step)):
        lowering.Lower._find_singly_assigned_variable = _find_singly_assigned_variable
    if _is_known("live_map", inspect.getsource(analysis.compute_live_map)):
        analysis.compute_live_map = _compute_live_map
    if _is_known("call_type", inspect.getsource(functions.BaseFunction)):
        _remember_call_types(functions.BaseFunction)
    config: Any = targetconfig.TargetConfig
    if _is_known("equal", inspect.getsource(config)):
        _compare_values_first(config)


def _is_known(name: str, source: str) -> bool:
    return hashlib.sha256(source.encode()).hexdigest().startswith(_WRITTEN_FOR[name])


class _FixVariable(ssa._FixSSAVars):
    """Puts the definition that reaches it in place of a use. `position` is that of the statement that is
    rewritten, and `defined_at` has those of definitions, by `id`; phi nodes have none."""

    def __init__(self) -> None:
        super().__init__(ssa._CacheListVars())
        self.position = 0
        self.defined_at: dict[int, int] = {}

    def _find_def(self, states: dict[str, Any], stmt: Any) -> Any:
        """As in the base class, which looks for the positions in the block."""
        label = states["label"]
        local_phis = states["phimap"][label]
        for definition in reversed(states["defmap"][label]):
            at = self.defined_at.get(id(definition))
            if at is None:  # only phi nodes
                return local_phis[-1]
            if at < self.position:
                return definition
        return self._find_def_from_top(states, label, loc=stmt.loc)


def _run_ssa(blocks: dict[int, Any]) -> dict[int, Any]:
    """Numba's `_run_ssa`, looking only at the statements that define or use a variable."""
    if not blocks:
        return {}
    cfg = analysis.compute_cfg_from_blocks(blocks)
    df_plus = ssa._iterated_domfronts(cfg)
    violators = ssa._find_defs_violators(blocks, cfg)
    bodies = {label: list(block.body) for label, block in blocks.items()}
    places = _places(bodies, violators)
    phis: dict[int, list[Any]] = {label: [] for label in blocks}
    for name in violators:
        own = places[name]
        defmap: dict[int, list[Any]] = defaultdict(list)
        states = ssa._make_states(blocks) | {"varname": name, "defmap": defmap}
        fresh, fix = ssa._FreshVarHandler(), _FixVariable()
        for label, positions in own.items():
            states["label"] = label
            body = bodies[label]
            for at in positions:
                statement = body[at]
                if isinstance(statement, ir.assign_types):
                    body[at] = fresh.on_assign(states, statement)
                    if body[at] is not statement:  # a definition, which is in `defmap` from now on
                        fix.defined_at[id(body[at])] = at
        phimap: dict[int, list[Any]] = defaultdict(list)
        states |= {"phimap": phimap, "cfg": cfg}
        states["phi_locations"] = ssa._compute_phi_locations(df_plus, defmap)
        for label, positions in own.items():
            states |= {"label": label, "block": blocks[label]}
            body = bodies[label]
            for fix.position in positions:
                statement = body[fix.position]
                rewrite = fix.on_assign if isinstance(statement, ir.assign_types) else fix.on_other
                body[fix.position] = rewrite(states, statement)
        for label, found in phimap.items():
            phis[label][:0] = found
    out = {}
    for label, block in blocks.items():
        out[label] = ir.Block(scope=block.scope, loc=block.loc)
        out[label].body = phis[label] + bodies[label]
    return out


def _places(bodies: dict[int, list[Any]], names: dict[str, None]) -> dict[str, dict[int, list[int]]]:
    """By variable and block, in order, the positions of the statements that define or use it."""
    places: dict[str, dict[int, list[int]]] = {name: {} for name in names}
    for label, body in bodies.items():
        for at, statement in enumerate(body):
            for name in {variable.name for variable in statement.list_vars()} & names.keys():
                places[name].setdefault(label, []).append(at)
    return places


def _find_singly_assigned_variable(self: Any) -> None:
    """Numba's `Lower._find_singly_assigned_variable`, counting the assignments of a block once."""
    found = set()
    if not self.func_ir.func_id.is_generator:
        blocks = self.func_ir.blocks
        use_defs = lowering.compute_use_defs(blocks)
        elsewhere = lowering.must_use_alloca(blocks)
        defining: dict[str, set[int]] = defaultdict(set)
        for block, names in use_defs.defmap.items():
            for name in names:
                defining[name].add(block)
        used = set().union(*use_defs.usemap.values())
        counts = {
            label: Counter(each.target.name for each in block.find_insts(ir.assign_types))
            for label, block in self.blocks.items()
        }
        for name, labels in defining.items():
            if name not in elsewhere and name not in used and len(labels) == 1:
                (label,) = labels
                if counts[label][name] == 1:
                    found.add(name)
    self._singly_assigned_vars = found
    self._blk_local_varmap = {}


def _compare_values_first(config: Any) -> None:
    """Options that were set to the same are equal: Numba compares all options, those left alone as well."""
    compare_all: Callable[[Any, Any], Any] = config.__eq__

    def equal(self: Any, other: Any) -> Any:
        if type(self) is type(other) and self._values == other._values:
            return True
        return compare_all(self, other)

    config.__eq__ = equal


def _compute_live_map(
    cfg: Any, blocks: dict[int, Any], uses: dict[int, set[str]], defs: dict[int, set[str]]
) -> dict[int, set[str]]:
    """Numba's `compute_live_map`, the variables that are alive where a block begins, with a bit for each
    variable."""
    names = sorted(set().union(*uses.values(), *defs.values()))
    bits = {name: 1 << i for i, name in enumerate(names)}
    used = {label: sum(bits[name] for name in uses[label]) for label in blocks}
    defined = {label: sum(bits[name] for name in defs[label]) for label in blocks}
    before = {label: [each for each, _ in cfg.predecessors(label)] for label in blocks}
    after = {label: [each for each, _ in cfg.successors(label)] for label in blocks}
    reaching = {label: used[label] | defined[label] for label in blocks}
    live, changes = dict(used), True
    while changes:
        changes = False
        for label in blocks:
            for each in after[label]:
                changes |= bool(reaching[label] & ~reaching[each])
                reaching[each] |= reaching[label]
    changes = True
    while changes:
        changes = False
        for label in reversed(blocks):
            for each in before[label]:
                more = live[label] & reaching[each] & ~defined[each] & ~live[each]
                changes |= bool(more)
                live[each] |= more
    return {label: _members(names, found) for label, found in live.items()}


def _members(names: list[str], bits: int) -> set[str]:
    return {names[i] for i, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"}


def _remember_call_types(function: Any) -> None:
    """The signature of a call of a builtin function or an intrinsic with numbers is always the same."""
    resolve: Callable[..., Any] = function.get_call_type
    scalars = types.Number, types.Boolean, types.Literal

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws or not isinstance(self, types.Function) or not all(isinstance(a, scalars) for a in args):
            return resolve(self, context, args, kws)
        known = self.__dict__.setdefault("_known_call_types", {})
        key = context, tuple(args)
        if key not in known:
            known[key] = resolve(self, context, args, kws)
        return known[key]

    function.get_call_type = get_call_type
