"""Non-polynomial operations on dims: floor division, remainder, minimum, maximum, broadcasting.

Each function simplifies its result as far as that is valid for all bindings of the symbols. If that
is not possible, the result is an `Atom` of the operation's name and operands.
"""

from __future__ import annotations

from contextlib import suppress
from keyword import iskeyword

from clrt.ir.dims import (
    OPERATIONS,
    Atom,
    Dim,
    Expr,
    Monomial,
    TooComplex,
    UndecidableDim,
    provably_different,
    provably_equal,
    reduced,
    single_atom,
    symbol,
    terms_of,
)

# Maximum number and maximum nesting of the atoms (non-polynomial operations) of one dim: ten times
# those of real models.
_MAX_ATOMS = 512
_MAX_DEPTH = 48
# Maximum length of a dim's text in characters; a symbol's name has up to 200.
_MAX_CHARS = 200_000


def floordiv(left: Dim, right: Dim) -> Dim:
    """Returns left // right; a polynomial if `right` divides `left` for all bindings."""
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if type(right) is int and right == 1:
        return left
    if provably_equal(left, 0):
        return 0
    quotient = _exact_quotient(left, right)
    if quotient is not None:
        return quotient
    if isinstance(right, int) and right > 0:  # makes sizes of nested windows comparable
        match _with_number(left):
            case "floordiv", x, divisor, more if divisor > 0:
                return floordiv(x + divisor * more, divisor * right)
            case "max", x, least, more:
                return maximum(floordiv(x + more, right), (least + more) // right)
    return _opaque("floordiv", left, right)


def mod(left: Dim, right: Dim) -> Dim:
    """Returns left % right, simplified if possible; else symbolic."""
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    return 0 if _exact_quotient(left, right) is not None else _opaque("mod", left, right)


def maximum(left: Dim, right: Dim) -> Dim:
    """Returns the larger of two dims; symbolic if that depends on the bindings."""
    for a, b in ((left, right), (right, left)):
        with suppress(UndecidableDim):
            return a if a >= b else b
    if isinstance(left, int):
        return maximum(right, left)
    if isinstance(right, int):
        match _with_number(left):
            case "max", x, least, more if least + more <= right:
                return maximum(x + more, right)
    return _absorb("max", "min", left, right)


def minimum(left: Dim, right: Dim) -> Dim:
    """Returns the smaller of two dims; symbolic if that depends on the bindings."""
    for a, b in ((left, right), (right, left)):
        with suppress(UndecidableDim):
            return a if a <= b else b
    if isinstance(left, int):
        return minimum(right, left)
    return _absorb("min", "max", left, right)


def broadcast(left: Dim, right: Dim) -> Dim:
    """Returns the broadcast of two dims, assuming that they are equal or one of them is 1."""
    for one, other in ((left, right), (right, left)):
        contained = (1, one, *_arguments(one, "broadcast"))
        if any(provably_equal(other, dim) for dim in contained) or provably_different(one, 1):
            return one
        match _with_number(other):  # min(one, n): slice of a table that has enough rows
            case "min", dim, most, 0 if most >= 1 and provably_equal(dim, one):
                return one
    return _opaque("broadcast", left, right)


OPERATIONS.update(floordiv=floordiv, mod=mod, max=maximum, min=minimum, broadcast=broadcast)


def parse_dim(text: str) -> Dim:
    """Parses the text of a dim, as `str(dim)` writes it.

    Raises:
        ValueError: The text is not a dim, or the dim exceeds the bounds on its complexity.
    """
    is_name = text.isascii() and text.isidentifier() and not iskeyword(text)
    if is_name and len(text) <= _MAX_CHARS:
        return symbol(text)
    import ast  # takes 8 ms

    def build(tree: ast.expr) -> Dim:
        match tree:
            case ast.Constant(value=int(number)) if (
                not isinstance(number, bool) and number < 1 << 64
            ):
                return number
            case ast.Name(id=name):
                return symbol(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -build(operand)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return build(left) + build(right)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return build(left) - build(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return build(left) * build(right)
            case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in OPERATIONS:
                return OPERATIONS[name](build(left), build(right))
        raise ValueError(f"not a dim: {text!r}")

    if len(text) > _MAX_CHARS:
        raise ValueError(f"not a dim: text of {len(text)} characters")
    try:
        return build(ast.parse(text, mode="eval").body)
    except (SyntaxError, ArithmeticError, RecursionError, MemoryError, TooComplex) as error:
        raise ValueError(f"not a dim: {text!r}") from error


def _opaque(name: str, left: Dim, right: Dim) -> Expr:
    """Returns the dim that is an operation on two dims, without simplifying it.

    Args:
        name: Name of the operation, a key of `OPERATIONS`.
        left: First operand.
        right: Second operand.

    Raises:
        TooComplex: The operation exceeds the bounds on nesting or size.
    """
    atom = Atom(name, (left, right))
    # Operations on plain polynomials, the common case, cannot exceed the bounds.
    inner = [a for d in (left, right) for m in terms_of(d) for a in m if a.args]
    if inner and (atom.depth > _MAX_DEPTH or atom.count > _MAX_ATOMS):
        raise TooComplex
    return Expr({(atom,): 1})


def _absorb(name: str, dual: str, left: Dim, right: Dim) -> Dim:
    """Returns max(left, right) or min(left, right), simplified by absorption if possible.

    For example, max(a, min(a, b)) is a, and max(a, max(a, b)) is max(a, b).

    Args:
        name: The operation: "max" or "min".
        dual: The opposite operation: "min" for "max", "max" for "min".
    """
    for one, other in ((left, right), (right, left)):
        if any(provably_equal(one, a) for a in _arguments(other, dual)):
            return one
        if any(provably_equal(one, a) for a in _arguments(other, name)):
            return other
    return _opaque(name, left, right)


def _arguments(dim: Dim, name: str) -> tuple[Dim, ...]:
    """Returns the operands of a dim that is a single operation `name`; () for other dims."""
    atom = single_atom(dim)
    return atom.args if atom is not None and atom.name == name else ()


def _exact_quotient(left: Dim, right: Dim) -> Dim | None:
    """Returns left / right as a polynomial; None if `right` does not divide `left`."""
    divisor_terms = terms_of(right)
    if len(divisor_terms) != 1:
        monomial, coefficient = next(iter(divisor_terms.items()))
        ratio = terms_of(left).get(monomial, 0) // coefficient
        return ratio if provably_equal(left, ratio * right) else None
    ((divisor, divisor_coefficient),) = divisor_terms.items()
    quotient: dict[Monomial, int] = {}
    for monomial, coefficient in terms_of(left).items():
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if not divisor_coefficient or coefficient % divisor_coefficient:
            return None
        quotient[tuple(rest)] = coefficient // divisor_coefficient
    return reduced(quotient)


def _with_number(dim: Dim) -> tuple[str, Dim, int, int] | None:
    """Matches a dim `op(x, n) + c` with an operation op, a dim x and integers n and c.

    Returns:
        (name of op, x, n, c); None for other dims.
    """
    if isinstance(dim, int):
        return None
    constant = dim.terms.get((), 0)
    atom = single_atom(dim - constant)
    if atom is None or not atom.args:
        return None
    left, right = atom.args
    return (atom.name, left, right, constant) if isinstance(right, int) else None
