"""Symbolic dimensions: integer polynomials over named, non-negative symbols.

A `Dim` is an `int` or an `Expr`. An `Expr` has a canonical form, so that two dims are equal exactly
if their polynomials are. Arrays of dims (dtype object) work in the same NumPy references as
numbers. A comparison whose result depends on the bindings of symbols raises `UndecidableDim`.

A few bytes of a file can describe a polynomial of any size, so terms, degree, coefficients and
nesting are bounded. An operation that exceeds the bounds raises `TooComplex`. An element of a value
is then computed at run time; a model with such a dim in a shape is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Union

from clrt.errors import UnsupportedError
from clrt.ir.symbolic_trace import is_traced
from clrt.util.fast_dataclass import dataclass

Dim = Union[int, "Expr"]
Shape = tuple[Dim, ...]
Bindings = Mapping[str, int]
Substitutes = Mapping[str, Dim]
Monomial = tuple["Atom", ...]
_Bounds = tuple[float, float]  # integers, or infinite
# Non-polynomial operations by name; `clrt/ir/dim_operations.py` registers them.
OPERATIONS: dict[str, Callable[[Dim, Dim], Dim]] = {}
# Name prefix of symbols that the shapes of inputs do not determine.
UNKNOWN = "unknown_"
# Bounds of one dim: number of terms (ten times that of real models), products of terms in one
# multiplication (which take 1 ms), degree of a term, and magnitude of coefficients.
_MAX_TERMS = 128
_MAX_PRODUCTS = 2048
_MAX_DEGREE = 16
_MAX_NUMBER = 2**63 - 1
# Magnitude from which the minimum or maximum of a dim counts as infinite: floats must not overflow.
_FAR = 1e60
_TOO_COMPLEX = (
    "A size inside the model is too long an expression of the sizes of its inputs; "
    "give some of these fixed sizes."
)


class UndecidableDim(Exception):
    """The result of a comparison or conversion depends on the values of the symbols."""


class TooComplex(UndecidableDim, UnsupportedError):
    """A dim exceeds the bounds on terms, degree, coefficients or nesting."""

    def __init__(self, message: str = _TOO_COMPLEX) -> None:
        super().__init__(message)


@dataclass(frozen=True, eq=False)
class Atom:
    """A factor of a polynomial's term: a symbol, or a non-polynomial operation on dims.

    Attributes:
        name: Name of the symbol, or of the operation (a key of `OPERATIONS`).
        args: Operands of the operation; empty for a symbol.
    """

    name: str
    args: tuple[Dim, ...] = ()

    @cached_property
    def text(self) -> str:
        """Text of the atom in messages and files; the sort key of factors and terms."""
        return f"{self.name}({', '.join(map(str, self.args))})" if self.args else self.name

    def __eq__(self, other: object) -> bool:
        # Structural equality: `==` of the operands may be undecidable.
        if not isinstance(other, Atom) or (self.name, len(self.args)) != (
            other.name,
            len(other.args),
        ):
            return False
        return all(provably_equal(a, b) for a, b in zip(self.args, other.args, strict=True))

    def __hash__(self) -> int:
        return hash((self.name, self.args))

    @cached_property
    def bounds(self) -> _Bounds:
        """Lower and upper bound of the atom over all non-negative bindings; may be infinite."""
        if not self.args:
            return 0, math.inf
        left, right = map(_bounds, self.args)
        if self.name == "broadcast":
            return _span((*left, *right))
        if self.name in ("min", "max"):
            pick = min if self.name == "min" else max
            return pick(left[0], right[0]), pick(left[1], right[1])
        if self.name == "mod":  # a remainder has the divisor's sign
            return min(right[0] + 1, 0), max(right[1] - 1, 0)
        # A quotient is monotone in each operand while the divisor, never 0, keeps its sign.
        divisors = [d for d in (right[0], -1, 1, right[1]) if d and right[0] <= d <= right[1]]
        return _span(_quotient(n, d) for n in left for d in divisors or [1])

    @cached_property
    def depth(self) -> int:
        """Nesting depth of operations in this atom: 1 for a symbol."""
        return 1 + max((a.depth for a in self.args if isinstance(a, Expr)), default=0)

    @cached_property
    def count(self) -> int:
        """Number of atoms: this one, and those of its operands."""
        return 1 + sum(a.count for a in self.args if isinstance(a, Expr))

    def bind(self, bindings: Substitutes) -> Dim:
        if not self.args:
            return bindings[self.name] if self.name in bindings else Expr({(self,): 1})
        left, right = (substitute(a, bindings) for a in self.args)
        return OPERATIONS[self.name](left, right)


class Expr:
    """A polynomial with integer coefficients; immutable and hashable.

    Attributes:
        terms: Nonzero coefficient by monomial, a sorted tuple of atoms; () is the constant term.
    """

    __slots__ = ("_hash", "_symbols", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        kept = [(monomial, c) for monomial, c in terms.items() if c]
        if len(kept) > 1:
            kept.sort(key=lambda term: [atom.text for atom in term[0]])
        self.terms: dict[Monomial, int] = dict(kept)
        self._hash = hash(tuple(self.terms.items()))
        self._symbols: frozenset[str] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Returns whether two dims are equal for all bindings of the symbols.

        Raises:
            UndecidableDim: The dims may be equal for some bindings and differ for others.
        """
        if isinstance(other, Expr) and self.terms == other.terms:
            return True
        if not isinstance(other, (int, Expr)):
            return NotImplemented
        left, right = (self, other) if isinstance(other, int) else (self - other, 0)
        if isinstance(left, int):
            return left == right
        low, high = _bounds(left)
        if low <= right <= high:
            raise UndecidableDim(f"{self} == {other}")
        return False

    def same(self, other: object) -> bool:
        """Returns whether `other` is the same polynomial as this dim; never raises."""
        return isinstance(other, Expr) and self.terms == other.terms

    def __add__(self, other: Dim) -> Dim:
        if not isinstance(other, (Expr, int)):
            return NotImplemented
        if type(other) is int and other == 0:
            return self
        terms = dict(self.terms)
        for monomial, coefficient in terms_of(other).items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return reduced(terms)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, (Expr, int)):
            return NotImplemented
        if type(other) is int and other == 1:
            return self
        terms: dict[Monomial, int] = {}
        others = terms_of(other)
        if len(self.terms) * len(others) > _MAX_PRODUCTS:
            raise TooComplex
        for m1, c1 in self.terms.items():
            for m2, c2 in others.items():
                monomial = tuple(sorted(m1 + m2, key=attrgetter("text")))
                terms[monomial] = terms.get(monomial, 0) + c1 * c2
        return reduced(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return OPERATIONS["floordiv"](self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return OPERATIONS["floordiv"](other, self)

    def __mod__(self, other: Dim) -> Dim:
        return OPERATIONS["mod"](self, other)

    def __bool__(self) -> bool:
        return self != 0

    def __lt__(self, other: Dim) -> bool:
        return _compare(self, other, strict=True)

    def __le__(self, other: Dim) -> bool:
        return _compare(self, other, strict=False)

    def __gt__(self, other: Dim) -> bool:
        return not _compare(self, other, strict=False)

    def __ge__(self, other: Dim) -> bool:
        return not _compare(self, other, strict=True)

    def __int__(self) -> int:
        raise UndecidableDim(f"int({self})")

    __index__ = __int__

    def __str__(self) -> str:
        parts: list[str] = []
        for monomial, coefficient in self.terms.items():
            factors = [atom.text for atom in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return "+".join(parts).replace("+-", "-")

    __repr__ = __str__

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbols that this dim depends on."""
        if self._symbols is None:
            names: set[str] = set()
            for atom in chain.from_iterable(self.terms):
                if atom.args:
                    names.update(*(a.symbols for a in atom.args if isinstance(a, Expr)))
                else:
                    names.add(atom.name)
            self._symbols = frozenset(names)
        return self._symbols

    @property
    def depth(self) -> int:
        """Nesting depth of this dim's operations: 0 for a constant, 1 for a plain polynomial."""
        return max((atom.depth for atom in chain.from_iterable(self.terms)), default=0)

    @property
    def count(self) -> int:
        """Number of atoms in this dim, including those of operands."""
        return sum(atom.count for atom in chain.from_iterable(self.terms))


def symbol(name: str) -> Expr:
    """Returns a dim that consists of the symbol `name`."""
    return Expr({(Atom(name),): 1})


def single_atom(dim: Dim) -> Atom | None:
    """Returns the atom that a dim consists of: a symbol or an operation; None for other dims."""
    if not isinstance(dim, Expr) or len(dim.terms) != 1:
        return None
    ((monomial, coefficient),) = dim.terms.items()
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else None


def is_symbol(dim: Dim) -> bool:
    """Returns whether a dim consists of one symbol alone."""
    atom = single_atom(dim)
    return atom is not None and not atom.args


def match_symbols(dims: Iterable[Dim], sizes: Iterable[Dim]) -> dict[str, int]:
    """Returns the sizes of symbols, by comparing dims with sizes at the same index.

    Only dims that are a single symbol are considered, and only sizes that are numbers.

    Returns:
        Size by name of the symbol.
    """
    pairs = zip(dims, sizes, strict=False)
    return {str(dim): n for dim, n in pairs if is_symbol(dim) and isinstance(n, int)}


def infer_symbols(dims: Iterable[Dim], others: Iterable[Dim]) -> dict[str, Dim]:
    """Returns known dims for unknown symbols, by comparing dims at the same index.

    Args:
        dims: Dims of a shape. Only dims that are a single unknown symbol (`is_unknown`) count.
        others: Dims of an equal shape, some of which are known.

    Returns:
        Known dim by name of the unknown symbol.
    """
    pairs = zip(dims, others, strict=False)
    return {
        str(d): n
        for d, n in pairs
        if d is not n and is_symbol(d) and is_unknown(d) and not is_unknown(n)
    }


def is_unknown(dim: Dim) -> bool:
    """Returns whether a dim contains a symbol that the shapes of the inputs do not determine."""
    return isinstance(dim, Expr) and any(s.startswith(UNKNOWN) for s in dim.symbols)


def provably_equal(left: Dim, right: Dim) -> bool:
    """Returns whether two dims are the same polynomial, hence equal for all bindings."""
    if isinstance(left, Expr):
        return left.same(right)
    return isinstance(right, int) and left == right


def provably_different(left: Dim, right: Dim) -> bool:
    """Returns whether two dims differ for all bindings; False if undecidable."""
    try:
        return left != right
    except UndecidableDim:
        return False


def same_shape(left: Sequence[Dim] | None, right: Sequence[Dim] | None) -> bool:
    """Returns whether two shapes are equal for all bindings; False if one is unknown (None)."""
    if left is None or right is None or len(left) != len(right):
        return False
    return all([a is b or provably_equal(a, b) for a, b in zip(left, right, strict=True)])


def substitute(dim: Dim, bindings: Substitutes) -> Dim:
    """Returns a dim with symbols replaced by the numbers or dims that `bindings` maps them to.

    A dim is returned unchanged if traced numbers would replace only some of its symbols.
    """
    if isinstance(dim, int):
        return dim
    bound = [bindings[name] for name in dim.symbols if name in bindings]
    # Coefficients must not be traced numbers: a partly bound dim is inferred again later.
    if not bound or (len(bound) < len(dim.symbols) and any(map(is_traced, bound))):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms.items():
        product: Dim = coefficient
        for atom in monomial:
            product = product * atom.bind(bindings)
        total = total + product
    return total


def product(dims: Sequence[Dim]) -> Dim:
    """Returns the product of dims; 1 if there are none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def terms_of(dim: Dim) -> dict[Monomial, int]:
    """Returns the polynomial of a dim: coefficient by monomial.

    The monomial of the constant term is ().
    """
    return {(): dim} if isinstance(dim, int) else dim.terms


def reduced(terms: Mapping[Monomial, int]) -> Dim:
    """Returns the dim that is the sum of some terms; an int if there is only the constant term.

    Args:
        terms: Coefficient by monomial; the monomial of the constant term is ().

    Raises:
        TooComplex: The terms exceed the bounds.
    """
    if len(terms) > _MAX_TERMS:
        raise TooComplex
    for monomial, coefficient in terms.items():
        if len(monomial) > _MAX_DEGREE or not -_MAX_NUMBER <= coefficient <= _MAX_NUMBER:
            raise TooComplex
    expr = Expr(terms)
    if not expr.terms:
        return 0
    if len(expr.terms) == 1 and () in expr.terms:
        return expr.terms[()]
    return expr


def _bounds(dim: Dim) -> _Bounds:
    """Returns a lower and an upper bound of a dim over all non-negative bindings.

    A bound is infinite if there is none.
    """
    low: float = 0
    high: float = 0
    for monomial, coefficient in terms_of(dim).items():
        bounds: _Bounds = (coefficient, coefficient)
        for atom in monomial:
            bounds = _span(a * b if a and b else 0 for a in bounds for b in atom.bounds)
        low, high = low + bounds[0], high + bounds[1]
    if low < -_FAR or high > _FAR:
        low, high = -math.inf if low < -_FAR else low, math.inf if high > _FAR else high
    return min(low, _FAR), max(high, -_FAR)


def _quotient(numerator: float, divisor: float) -> float:
    """Returns the quotient of a bound and a divisor, rounded down; infinite if the bound is."""
    if math.isinf(numerator):
        return numerator if divisor > 0 else -numerator
    return int(numerator // divisor)


def _span(values: Iterable[float]) -> _Bounds:
    """Returns the minimum and the maximum of numbers, as bounds."""
    numbers = list(values)
    return min(numbers), max(numbers)


def _compare(left: Dim, right: Dim, *, strict: bool) -> bool:
    """Returns whether left < right if `strict`, else whether left <= right, for all bindings.

    Raises:
        UndecidableDim: The result depends on the bindings.
    """
    low, high = _bounds(right - left)
    threshold = 1 if strict else 0
    if low >= threshold:
        return True
    if high < threshold:
        return False
    raise UndecidableDim(f"{left} {'<' if strict else '<='} {right}")
