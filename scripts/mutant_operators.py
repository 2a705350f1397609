"""What a random mutant changes: operators of cosmic-ray, and three of our own for tensor code.

Of cosmic-ray's operators only those are used whose mutants a reader could overlook: a + that became
a -, not a + that became a <<, which nearly every test notices at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from cosmic_ray.operators.number_replacer import NumberReplacer
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

BINARY = (
    *("Add_Sub", "Sub_Add", "Add_Mul", "Mul_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul"),
    *("Mod_FloorDiv", "Pow_Mul", "BitAnd_BitOr", "BitOr_BitAnd"),
)
COMPARISONS = (
    *("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "LtE_GtE", "Gt_Lt", "GtE_LtE"),
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
)
OTHERS = (
    *("ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not"),
    *("ReplaceUnaryOperator_Delete_Invert", "ReplaceTrueWithFalse"),
    *("ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot"),
    *("ZeroIterationForLoop", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    "RemoveDecorator",
)
PAIRS = (
    *(("min", "max"), ("minimum", "maximum"), ("amin", "amax"), ("argmin", "argmax")),
    *(("any", "all"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("mean", "sum")),
    *(("train", "eval"), ("no_grad", "enable_grad"), ("repeat", "repeat_interleave")),
)
OTHER_NAME = dict((*PAIRS, *((b, a) for a, b in PAIRS)))
UNLIKE_A_NAME = frozenset({"argument", "operator", "string", "number", "fstring", "atom"})
ANY_ORDER = frozenset({"min", "max", "minimum", "maximum", "isinstance", "getattr", "logaddexp"})
MODULES = frozenset({"torch", "F", "math", "json", "os", "time", "copy", "nn", "statistics"})
Position = tuple[tuple[int, int], tuple[int, int]]


def is_call(node: Any) -> bool:
    """Whether the node is the (...) of a call."""
    return node.type == "trailer" and node.children[0].value == "("


def is_method_name(node: Any) -> bool:
    """Whether the node is the .name of an attribute."""
    return node.type == "trailer" and node.children[0].value == "."


def called_name(call: Any) -> str:
    """The name in front of the (...) of a call."""
    leaf = call.get_previous_leaf()
    return leaf.value if leaf.type == "name" else ""


class ChangeNumber(NumberReplacer):
    """cosmic-ray's n + 1 and n - 1, with the white space of n."""

    def mutate(self, node: Any, index: int) -> Any:
        number = super().mutate(node, index)
        number.value, number.prefix = number.value.strip(), node.prefix
        return number


class OurOperator(Operator):
    """An operator that makes at most one mutant of a node, at `place`."""

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()

    @abstractmethod
    def place(self, node: Any) -> Any:
        """The part of the node that changes, or None where the operator does not apply."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        part = self.place(node)
        if part is not None:
            yield part.start_pos, part.end_pos


class DropMethodCall(OurOperator):
    """`x.detach()` becomes `x`: the last call of a chain is left out, unless it names a device."""

    def place(self, node: Any) -> Any:
        if node.type != "atom_expr" or len(node.children) < 3:
            return None
        first, *_, name, call = node.children
        of_module = len(node.children) == 3 and first.get_code().strip() in MODULES
        if not (is_method_name(name) and is_call(call)) or of_module:
            return None
        # The tests run on the CPU, where a move to another device is no change.
        moves = name.get_code() in (".cpu", ".to") and "type" not in call.get_code()
        return None if moves else name

    def mutate(self, node: Any, index: int) -> Any:
        del node.children[-2:]
        return node


class SwapName(OurOperator):
    """`min` becomes `max`, `zeros` becomes `ones`, `mean` becomes `sum`: the call's name changes."""

    def place(self, node: Any) -> Any:
        if node.type != "name" or node.value not in OTHER_NAME:
            return None
        called = node.parent if is_method_name(node.parent) else node
        following = called.get_next_sibling()
        return node if following is not None and is_call(following) else None

    def mutate(self, node: Any, index: int) -> Any:
        node.value = OTHER_NAME[node.value]
        return node


class SwapArguments(OurOperator):
    """`f(a, b)` becomes `f(b, a)`, and `where(c, a, b)` becomes `where(c, b, a)`."""

    def first(self, call: Any) -> int:
        """Where the two stand that change places, among arguments and commas."""
        return 2 if called_name(call) == "where" else 0

    def place(self, node: Any) -> Any:
        if not is_call(node) or node.children[1].type != "arglist":
            return None
        start = self.first(node)
        two = node.children[1].children[start : start + 3 : 2]
        plain = len(two) == 2 and not any(part.type in UNLIKE_A_NAME for part in two)
        return node if plain and called_name(node) not in ANY_ORDER else None

    def mutate(self, node: Any, index: int) -> Any:
        arguments, start = node.children[1].children, self.first(node)
        first, second = arguments[start], arguments[start + 2]
        space, other_space = (x.get_first_leaf().prefix for x in (first, second))
        first.get_first_leaf().prefix, second.get_first_leaf().prefix = other_space, space
        arguments[start], arguments[start + 2] = second, first
        return node


def operators() -> Mapping[str, Operator]:
    """Every operator by name."""
    names = (
        *(f"ReplaceBinaryOperator_{name}" for name in BINARY),
        *(f"ReplaceComparisonOperator_{name}" for name in COMPARISONS),
        *OTHERS,
    )
    ours = (ChangeNumber, DropMethodCall, SwapName, SwapArguments)
    return {name: get_operator(f"core/{name}")() for name in names} | {
        operator.__name__: operator() for operator in ours
    }
