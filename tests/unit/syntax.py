"""Statements of Python sources, without the expressions in them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator


def statements(
    tree: ast.AST, skip: Callable[[ast.AST], bool] = lambda node: False
) -> Iterator[ast.AST]:
    """Yields a syntax tree's statements and their blocks; not what is in a statement to skip."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        if not skip(node):
            inside = ast.iter_child_nodes(node)
            left += [x for x in inside if not isinstance(x, (ast.expr, ast.expr_context))]
