"""Symbolic tracing of planning, which turns a plan for one set of sizes into a template.

Planning is ordinary Python code over the sizes of one call. If the sizes are `TracedInt`s, the same
code records a `ShapeTrace`: each result as a formula of the symbols, and the outcome of each
comparison as a guard. At other sizes for which all guards hold, planning would take the same
branches, so its results are the formulas' values there.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial, wraps
from typing import Any, TypeAlias, TypeVar, cast

from clrt.ir.stored_functions import import_home, name_of, split_constants, with_constants

_Operation = Callable[..., Any]
# (formula, operation, first operand, second operand); for other than two operands, -1 and a tuple.
_Step: TypeAlias = "tuple[int, _Operation, int, Any]"
# Comparison, formulas of its operands, and outcome.
_Guard: TypeAlias = "tuple[tuple[_Operation, int, int], bool]"
# By "module:name" of a `@pure` function: returns its operations for keyword arguments.
_PURE: dict[str, Callable[[tuple[tuple[str, object], ...]], _Operations]] = {}
# Maximum bits of any formula of a stored trace, which bounds time and memory of its evaluation;
# sizes have 64.
_MAX_BITS = 1 << 16
# Maximum bits of the result of a `@pure` function that is longer than its operands: such a result
# is converted from a float32.
_FUNCTION_BITS = 128
_Function = TypeVar("_Function", bound=Callable[..., "int | tuple[int, ...]"])


@dataclass(frozen=True)
class Evaluation:
    """Values of the formulas of a shape trace at the sizes of one call.

    Attributes:
        numbers: Value of each formula, by the index of the formula.
        arrays: Cache of arrays that are computed from the numbers; code that uses it chooses keys.
    """

    numbers: list[int]
    arrays: dict[object, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredTrace:
    """A shape trace as numbers and texts, for files.

    Attributes:
        symbols: Names of the symbols.
        numbers: Value of each formula at the sizes with which the trace was recorded.
        steps: (formula, operation, formulas of the operands) in order of computation.
        guards: (comparison, formula, formula, outcome).
        texts: Names of the operations and comparisons, to which `steps` and `guards` refer by
            index.
    """

    symbols: Sequence[str]
    numbers: Sequence[int]
    steps: Sequence[Sequence[int]]
    guards: Sequence[Sequence[int]]
    texts: Sequence[str]


class ShapeTrace:
    """Formulas and guards recorded by one computation over traced integers.

    A formula is represented by an index into `Evaluation.numbers`: first the symbols, then
    constants and results in order of creation. Equal formulas have the same index.

    Attributes:
        symbols: Names of the symbols.
        pinned_at: Source lines (file:line) that used a traced number as a plain one, such as an
            index or a dict key. The trace is then only valid for the value of this number.
    """

    def __init__(self, symbols: Mapping[str, int]) -> None:
        """Creates an empty trace.

        Args:
            symbols: Value of each symbol in the recorded computation.
        """
        self.symbols = tuple(symbols)
        self.pinned_at: list[str] = []
        self._numbers = list(symbols.values())
        self._steps: list[_Step] = []
        self._guards: dict[tuple[_Operation, int, int], bool] = {}
        # Guard that failed at the last evaluation, and its steps: checked first, without others.
        self._suspect: tuple[Sequence[_Step], Collection[_Guard]] = (), ()
        self._known: dict[tuple[Any, ...], int] = {}

    def start(self) -> dict[str, int]:
        """Returns the values of the symbols as traced numbers, by name, to start computing with."""
        pairs = zip(self.symbols, self._numbers, strict=False)
        return {s: _as_int(TracedInt(self, i, n)) for i, (s, n) in enumerate(pairs)}

    def to_stored(self) -> StoredTrace:
        """Converts the trace to its stored form."""
        texts: dict[str, int] = {}

        def text(operation: _Operation) -> int:
            return texts.setdefault(_name_of(operation), len(texts))

        steps = [[step[0], text(step[1]), *_operands(step)] for step in self._steps]
        guards = [[text(f), a, b, int(is_so)] for (f, a, b), is_so in self._guards.items()]
        return StoredTrace(self.symbols, list(self._numbers), steps, guards, list(texts))

    @classmethod
    def from_stored(cls, stored: StoredTrace) -> ShapeTrace:
        """Converts the stored form back to a trace.

        Raises:
            ValueError: It names an unknown operation or formula, computes a formula that has a
                value already, its formulas do not give the stored values at the stored sizes, or a
                formula could exceed `_MAX_BITS` bits.
        """
        trace = cls(dict(zip(stored.symbols, stored.numbers, strict=False)))
        operations = [_operation(text) for text in stored.texts]
        trace._numbers = list(stored.numbers)
        known = range(len(trace._numbers))
        if any(n not in known for step in stored.steps for n in (step[0], *step[2:])):
            raise ValueError("a formula that does not exist")
        trace._steps = [_step(n, operations[f], operands) for n, f, *operands in stored.steps]
        trace._guards = {(operations[f], a, b): bool(so) for f, a, b, so in stored.guards}
        if any(n not in known for _, *numbers in trace._guards for n in numbers):
            raise ValueError("a guard of a formula that does not exist")
        trace._check_steps()
        found = trace.evaluate(trace.sizes)
        if found is None or found.numbers != trace._numbers:
            raise ValueError("a formula with another value")
        return trace

    def _check_steps(self) -> None:
        """Checks that each formula of a stored trace has one value, and that numbers are bounded.

        Raises:
            ValueError: A number of the trace is no integer of 64 bits; a step computes a symbol, or
                a formula that an earlier step computed or read; or a formula could have more than
                `_MAX_BITS` if all symbols had 64.
        """
        if not all(type(n) is int and -1 << 63 <= n < 1 << 64 for n in self._numbers):
            raise ValueError("a number of more than 64 bits")
        bits = [64] * len(self._numbers)
        known = {*range(len(self.symbols))}
        for step in self._steps:
            index, compute, operands = step[0], step[1], _operands(step)
            known.update(operands)
            if index in known:
                raise ValueError("a formula of two values")
            known.add(index)
            operand_bits = [bits[i] for i in operands]
            if compute is operator.mul:
                bits[index] = sum(operand_bits)
            else:
                least = 0 if compute in _NAMES else _FUNCTION_BITS
                bits[index] = max(least, 1 + max(operand_bits))
            if bits[index] > _MAX_BITS:
                raise ValueError("a formula of too many factors")

    @property
    def sizes(self) -> dict[str, int]:
        """Value of each symbol in the recorded computation."""
        return dict(zip(self.symbols, self._numbers, strict=False))

    def number(self, formula: int) -> int:
        """Returns the traced number of a formula, by its index."""
        return _as_int(TracedInt(self, formula, self._numbers[formula]))

    def formula(self, number: int) -> int:
        """Returns the index of the formula of a number; a plain number is added as a constant.

        Raises:
            ValueError: The number belongs to another trace.
        """
        traced = _traced(number)
        if traced is None:
            return self._constant(int(number))
        if traced.trace is not self:
            raise ValueError("a number of another trace")
        return traced.index

    def evaluate(self, symbols: Mapping[str, int]) -> Evaluation | None:
        """Evaluates all formulas at other values of the symbols.

        Returns:
            The values; None if a guard does not hold, or if a formula fails, such as by dividing
            by zero.
        """
        numbers = self._numbers.copy()
        for index, name in enumerate(self.symbols):
            numbers[index] = symbols[name]
        try:
            if _failed_guard(*self._suspect, numbers) is not None:
                return None
            failed = _failed_guard(self._steps, self._guards.items(), numbers)
        except (ArithmeticError, ValueError):  # a division by zero, a negative shift
            return None
        if failed is None:
            return Evaluation(numbers)
        self._suspect = self._steps_before(failed), [failed]
        return None

    def _steps_before(self, guard: _Guard) -> list[_Step]:
        """Returns the steps from which the operands of a guard are computed, in order."""
        (_, *formulas), _ = guard
        needed, steps = set(formulas), []
        for step in reversed(self._steps):
            if step[0] in needed:
                needed.update(_operands(step))
                steps.append(step)
        return steps[::-1]

    def computed(self, compute: _Operation, operands: Sequence[int], value: int) -> int:
        """Records the result of a pure function of numbers; returns it as a traced number.

        Args:
            compute: The function.
            operands: Arguments of the function, plain or traced.
            value: Result of the function at the current sizes.
        """
        formulas = tuple(map(self.formula, operands))
        if compute in _COMMUTATIVE:
            formulas = tuple(sorted(formulas))
        index = self._known.get((compute, formulas))
        if index is None:
            index = self._add((compute, formulas), value)
            self._steps.append(_step(index, compute, formulas))
        return _as_int(TracedInt(self, index, value))

    def guard(self, compare: _Operation, a: int, b: int, outcome: bool) -> bool:
        """Records the outcome of a comparison as a guard; returns the outcome.

        Args:
            compare: The comparison.
            a: Left operand, plain or traced.
            b: Right operand, plain or traced.
            outcome: Result of the comparison at the current sizes.
        """
        left, right = self.formula(a), self.formula(b)
        if left != right:
            self._guards[compare, left, right] = outcome
        return outcome

    def specialize_on(self, number: TracedInt) -> int:
        """Returns the plain value of a number; the trace then only holds for this value."""
        frame = sys._getframe(1)
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        self.pinned_at.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        self.guard(operator.eq, _as_int(number), number.value, True)
        return number.value

    def is_pinned(self, symbol: int) -> bool:
        """Returns whether the trace is restricted to the current value of a symbol.

        Args:
            symbol: Index of the symbol.
        """
        computed = {*range(len(self.symbols)), *(step[0] for step in self._steps)}
        return any(
            compare is operator.eq and a == symbol and b not in computed and is_so
            for (compare, a, b), is_so in self._guards.items()
        )

    def pin_all(self) -> None:
        """Restricts the trace to the current values of all symbols."""
        for number in self.start().values():
            operator.index(number)

    def _constant(self, number: int) -> int:
        index = self._known.get((number,))
        return self._add((number,), number) if index is None else index

    def _add(self, key: tuple[Any, ...], value: int) -> int:
        """Adds a formula, found by `key` from then on; returns its index.

        Args:
            key: The constant, or the operation and the indices of its operands.
            value: Value of the formula at the current sizes.
        """
        self._known[key] = index = len(self._numbers)
        self._numbers.append(value)
        return index


def _step(index: int, compute: _Operation, operands: Sequence[int]) -> _Step:
    """Returns the step that computes a formula.

    Args:
        index: The formula.
        compute: Operation that computes it.
        operands: Formulas of the operands.
    """
    first, second = operands if len(operands) == 2 else (-1, tuple(operands))
    return index, compute, first, second


def _operands(step: _Step) -> Sequence[int]:
    """Returns the formulas of a step's operands."""
    _, _, first, second = step
    return (first, second) if first >= 0 else second


def _failed_guard(
    steps: Iterable[_Step], guards: Iterable[_Guard], numbers: list[int]
) -> _Guard | None:
    """Computes steps in order, and returns the first guard that then fails; None if all hold.

    Args:
        steps: Steps, which come after those that they need.
        guards: Guards to check.
        numbers: Value of each formula, which the steps replace.
    """
    for index, compute, a, b in steps:
        numbers[index] = (
            compute(numbers[a], numbers[b]) if a >= 0 else compute(*[numbers[i] for i in b])
        )
    for guard in guards:
        (compare, a, b), outcome = guard
        if compare(numbers[a], numbers[b]) is not outcome:
            return guard
    return None


class TracedInt:
    """An integer that records the operations and comparisons it is used in.

    `isinstance(x, int)` is true, but the class does not derive from int: NumPy and C code would
    read the value of a subclass unnoticed. As it is, such code calls `__index__`, which restricts
    the trace to the value.

    Attributes:
        trace: The trace.
        index: Index of the number's formula in the trace.
        value: The number at the current sizes.
    """

    __slots__ = ("index", "trace", "value")

    def __init__(self, trace: ShapeTrace, index: int, value: int) -> None:
        self.trace = trace
        self.index = index
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __index__(self) -> int:
        return self.trace.specialize_on(self)

    def __int__(self) -> int:
        return self.trace.specialize_on(self)

    def __float__(self) -> float:
        return float(self.trace.specialize_on(self))

    def __hash__(self) -> int:
        return hash(self.trace.specialize_on(self))

    def __bool__(self) -> bool:
        return self.trace.guard(operator.ne, _as_int(self), 0, self.value != 0)

    def __neg__(self) -> int:
        return 0 - _as_int(self)

    def __pos__(self) -> int:
        return _as_int(self)

    def __abs__(self) -> int:
        return -_as_int(self) if _as_int(self) < 0 else _as_int(self)

    def __divmod__(self, other: int) -> tuple[int, int]:
        return _as_int(self) // other, _as_int(self) % other

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return other // _as_int(self), other % _as_int(self)

    def __truediv__(self, other: float) -> float:
        return self.trace.specialize_on(self) / float(other)

    def __rtruediv__(self, other: float) -> float:
        return float(other) / self.trace.specialize_on(self)

    def __pow__(self, other: int) -> int:
        return int(self.trace.specialize_on(self) ** other)

    def __rpow__(self, other: int) -> int:
        return int(other ** self.trace.specialize_on(self))

    def bit_length(self) -> int:
        """Returns the number of bits, as `int.bit_length`; restricts the trace to the value."""
        return self.trace.specialize_on(self).bit_length()

    def __format__(self, spec: str) -> str:
        return format(self.trace.specialize_on(self), spec)

    def __str__(self) -> str:
        return str(self.trace.specialize_on(self))

    def __repr__(self) -> str:
        return repr(self.trace.specialize_on(self))


_COMMUTATIVE = {operator.add, operator.mul, operator.and_, operator.or_}


def is_traced(number: object) -> bool:
    """Returns whether a number is a `TracedInt`."""
    return type(number) is TracedInt


def untraced(number: int) -> int:
    """Returns a number's plain value without restricting its trace, for messages and estimates."""
    traced = _traced(number)
    return number if traced is None else traced.value


def trace_of(numbers: Iterable[object]) -> ShapeTrace | None:
    """Returns the trace of the first traced number in `numbers`; None if there is none."""
    return next((t.trace for n in numbers if (t := _traced(n)) is not None), None)


def _traced(number: object) -> TracedInt | None:
    return number if type(number) is TracedInt else None


def pure(function: _Function) -> _Function:
    """Decorator that lets a trace record a function of integers as a single operation.

    Evaluating the trace calls the function again, so its comparisons need no guards. This suits
    searches and float arithmetic. The function must be called with its integers as positional
    arguments, and return an integer or a NamedTuple of integers; each integer becomes a formula.
    Keyword arguments are hashable constants, such as thresholds, that do not depend on sizes.
    """

    name = name_of(function)

    @lru_cache(maxsize=64)
    def operations_of(constants: tuple[tuple[str, object], ...]) -> _Operations:
        whole = partial(function, **dict(constants)) if constants else function
        return _Operations(whole, with_constants(name, dict(constants)))

    if name:
        _PURE[name] = operations_of

    @wraps(function)
    def traced(*numbers: int, **constants: object) -> int | tuple[int, ...]:
        trace = trace_of(numbers)
        if trace is None:
            return function(*numbers, **constants)
        operations = operations_of(tuple(constants.items()))
        value = operations.whole(*map(untraced, numbers))
        if not isinstance(value, tuple):
            return trace.computed(operations.whole, numbers, value)
        fields = (trace.computed(operations.field(i), numbers, n) for i, n in enumerate(value))
        return cast("tuple[int, ...]", cast(Any, value)._make(fields))

    return cast(_Function, traced)


class _Operations:
    """A pure function as operations of traces: the same objects at each call.

    Attributes:
        whole: The function.
        field: Returns the operation that computes one integer of a NamedTuple, by its index.
    """

    def __init__(self, whole: Callable[..., int | tuple[int, ...]], name: str) -> None:
        """Makes the operations of a function.

        Args:
            name: Name of the function in a `StoredTrace`; "" if it cannot be stored.
        """
        # Caches results: the formulas of a NamedTuple are evaluated one after another.
        latest = lru_cache(maxsize=8)(whole)
        self.whole = whole
        whole.__dict__["stored_name"] = name

        @cache
        def field(index: int) -> _Operation:
            def compute(*numbers: int) -> int:
                return cast("tuple[int, ...]", latest(*numbers))[index]

            compute.__dict__["stored_name"] = f"{name}#{index}" if name else ""
            return compute

        self.field = field


@pure  # guards of its comparisons would restrict the trace to one side of a bound
def clamp(number: int, least: int, most: int) -> int:
    """Returns `number` limited to the range `least` ... `most`; `least` if the range is empty."""
    return max(least, min(most, number))


def _as_int(number: TracedInt) -> int:
    return cast(int, number)


def _integer(other: Any) -> int | None:
    """Returns an operand of an operator as an integer; None if it is no integer, as an array."""
    if isinstance(other, int):
        return other
    try:
        return operator.index(other)
    except TypeError:
        return None


def _arithmetic(compute: _Operation, neutral: int | None) -> tuple[Any, Any]:
    """Returns the methods `__op__` and `__rop__` of TracedInt for an arithmetic operator.

    Args:
        compute: The operator on plain integers.
        neutral: Right operand that leaves the left one unchanged, such as 0 of addition; None if
            the operator has none.
    """

    def forward(self: TracedInt, other: Any) -> Any:
        if isinstance(other, float):
            return compute(float(self), other)
        right = _integer(other)
        if right is None:
            return NotImplemented
        if type(right) is int and right == neutral:
            return self
        value = compute(self.value, untraced(right))
        return self.trace.computed(compute, [_as_int(self), right], value)

    def reflected(self: TracedInt, other: Any) -> Any:
        if isinstance(other, float):
            return compute(other, float(self))
        left = _integer(other)
        if left is None:
            return NotImplemented
        if left == neutral and compute in _COMMUTATIVE:
            return self
        return self.trace.computed(compute, [left, _as_int(self)], compute(left, self.value))

    return forward, reflected


def _comparison(compare: _Operation) -> Any:
    """Returns a TracedInt method that compares by `compare` and records the outcome as a guard."""

    def method(self: TracedInt, other: Any) -> Any:
        if isinstance(other, float):
            return compare(float(self), other)
        right = _integer(other)
        if right is None:
            return NotImplemented
        outcome = bool(compare(self.value, untraced(right)))
        return self.trace.guard(compare, _as_int(self), right, outcome)

    return method


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _install(operations: Sequence[tuple[str, _Operation, int | None]]) -> None:
    """Adds to TracedInt comparisons, and arithmetic by (name, operator, neutral operand)."""
    for name, compute, neutral in operations:
        forward, reflected = _arithmetic(compute, neutral)
        setattr(TracedInt, f"__{name}__", forward)
        setattr(TracedInt, f"__r{name}__", reflected)
    for name in _COMPARISONS:
        setattr(TracedInt, f"__{name}__", _comparison(getattr(operator, name)))


_OPERATIONS: list[tuple[str, _Operation, int | None]] = [
    ("add", operator.add, 0),
    ("sub", operator.sub, 0),
    ("mul", operator.mul, 1),
    ("floordiv", operator.floordiv, 1),
    ("mod", operator.mod, None),
    ("rshift", operator.rshift, 0),
    ("and", operator.and_, None),
    ("or", operator.or_, 0),
]
_install(_OPERATIONS)
_BY_NAME: dict[str, _Operation] = {
    **{name: operation for name, operation, _ in _OPERATIONS},
    **{name: getattr(operator, name) for name in _COMPARISONS},
}
_NAMES = {operation: name for name, operation in _BY_NAME.items()}


def _name_of(operation: _Operation) -> str:
    """Returns the name of an operation in a `StoredTrace`.

    Raises:
        ValueError: It has none.
    """
    name = _NAMES.get(operation) or operation.__dict__["stored_name"]
    if not name:
        raise ValueError("a function that cannot be named")
    return cast(str, name)


def _operation(name: str) -> _Operation:
    """Returns the operation of a name that `_name_of` returned; imports the module of a function.

    Raises:
        ValueError: There is no such operation.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    called, _, field = name.partition("#")
    function, constants = split_constants(called)
    if function not in _PURE:
        import_home(function)
    if function not in _PURE or not (field.isdigit() or not field):
        raise ValueError(f"no operation {name[:100]!r}")
    operations = _PURE[function](tuple(constants.items()))
    return operations.field(int(field)) if field else operations.whole
