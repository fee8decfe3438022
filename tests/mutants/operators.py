"""Small defects of a Python file: each replaces one piece of its text.

The kinds are those of mutation testing: comparisons, arithmetic, constants, conditions, removed
statements and arguments, returned values, and order.  Texts, types and annotations stay.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeGuard

KINDS = (
    "comparison", "arithmetic", "constant", "condition", "removed statement", "removed argument",
    "returned value", "order",
)  # fmt: skip

_COMPARED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
_CALCULATED = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}  # fmt: skip
_OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil",
             "ceil": "floor", "argmin": "argmax", "argmax": "argmin"}  # fmt: skip

#: Arguments whose absence or other value no result shows: they guard, describe or format.
_GUARDS = {"strict", "encoding", "stacklevel", "help", "flush", "metavar", "about", "said", "title",
           "timeout", "timespec"}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One defect: the bytes from ``start`` to ``end`` of a file are replaced by ``text``.

    Args:
        file: path from the project's root.
        line: the first line of the changed piece, from 1.
        lines: all lines of the statement's head that the piece belongs to.
        module_level: the piece is executed when the file is imported.
    """

    file: str
    kind: str
    line: int
    lines: tuple[int, ...]
    module_level: bool
    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the file's content with the defect."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def shown(self, source: bytes) -> str:
        """Return where the defect is and what it replaces, in one line."""
        before = " ".join(source[self.start : self.end].decode().split())
        after = " ".join(self.text.split())
        return f"{self.file}:{self.line} {self.kind}: {before[:70]!r} -> {after[:70]!r}"


def mutants(file: str, source: bytes) -> list[Mutant]:
    """Return all defects of a file in the order of its text; few are no Python (`is_python`)."""
    found = set(_Finder(file, source).found())
    return sorted(found, key=lambda one: (one.start, one.end, one.text, one.kind))


def is_python(source: bytes) -> bool:
    """Return whether a file's content can be parsed."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


_Node = ast.expr | ast.stmt | ast.keyword


class _Head(NamedTuple):
    """Lines of a statement up to its body, and whether an import executes it."""

    lines: tuple[int, ...]
    module_level: bool


class _Finder:
    """Finds the places of one file at which a defect can be put."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        starts = [0]
        for line in source.split(b"\n"):
            starts.append(starts[-1] + len(line) + 1)
        self._starts = starts

    def found(self) -> Iterator[Mutant]:
        yield from self._body(ast.parse(self._source).body, module_level=True)

    # ------------------------------------------------------------------------ walking

    def _body(self, body: list[ast.stmt], module_level: bool) -> Iterator[Mutant]:
        for statement in body:
            if not _is_text(statement):
                yield from self._statement(statement, module_level)
        for first, second in pairwise(body):
            if _may_swap(first, second):
                gap = self._source[self._end(first) : self._start(second)].decode()
                text = self._segment(second) + gap + self._segment(first)
                head = _head(first, module_level)
                yield self._at(head, "order", first, text, end=self._end(second))

    def _statement(self, node: ast.stmt, module_level: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        head = _head(node, module_level)
        for one in self._own(node):
            yield from self._expressions(one, head)
        if _may_remove(node):
            yield self._at(head, "removed statement", node, "pass")
        if isinstance(node, ast.If | ast.While):
            text = f"not ({self._segment(node.test)})"
            yield self._at(head, "condition", node.test, text)
        if isinstance(node, ast.Return) and not _is_nothing(node.value):
            yield self._at(head, "returned value", node.value, "None")
        if isinstance(node, ast.AugAssign):
            yield from self._operator(head, node.op, node.target, node.value, "=")
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                yield from self._body(inner, module_level and not is_function)
        for handler in getattr(node, "handlers", []):
            yield from self._body(handler.body, module_level)
        for case in getattr(node, "cases", []):
            yield from self._body(case.body, module_level)

    def _own(self, node: ast.stmt) -> Iterator[ast.expr]:
        """Yield the expressions of a statement itself: not its body, annotations, decorators."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from node.args.defaults
            yield from (one for one in node.args.kw_defaults if one is not None)
        elif isinstance(node, ast.AnnAssign):
            yield from [node.value] if node.value is not None else []
        elif not isinstance(node, ast.ClassDef):
            for _, value in ast.iter_fields(node):
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, ast.expr):
                        yield one
                    elif isinstance(one, ast.withitem):
                        yield one.context_expr

    def _expressions(self, root: ast.expr, head: _Head) -> Iterator[Mutant]:
        guards = {one.value for one in ast.walk(root) if _is_guard(one)}
        for node in ast.walk(root):
            if node in guards:
                continue
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
                    yield from self._operator(head, op, left, right)
            elif isinstance(node, ast.BinOp):
                yield from self._operator(head, node.op, node.left, node.right)
            elif isinstance(node, ast.BoolOp):
                yield from self._operator(head, node.op, *node.values[:2])
            elif isinstance(node, ast.Constant):
                for text in _other_constant(node.value):
                    yield self._at(head, "constant", node, text)
            elif isinstance(node, ast.Call):
                yield from self._call(node, head)
            for test in _conditions(node):
                yield self._at(head, "condition", test, f"not ({self._segment(test)})")

    def _call(self, node: ast.Call, head: _Head) -> Iterator[Mutant]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in _OPPOSITE:
            end, text = self._end(node.func), _OPPOSITE[name]
            yield self._at(head, "order", node.func, text, end - len(name), end)
        plain = [one for one in node.args if not isinstance(one, ast.Starred)]
        if len(plain) >= 2 and plain == node.args and name not in ("isinstance", "issubclass"):
            first, second = plain[:2]
            if ast.dump(first) != ast.dump(second) and not _OPPOSITE.get(name or ""):
                gap = self._source[self._end(first) : self._start(second)].decode()
                text = self._segment(second) + gap + self._segment(first)
                yield self._at(head, "order", first, text, end=self._end(second))
        for n, keyword in enumerate(node.keywords):
            if keyword.arg is None or _is_guard(keyword):
                continue
            start, end = self._start(keyword), self._end(keyword)
            if n + 1 < len(node.keywords):
                end = self._start(node.keywords[n + 1])
            elif n or node.args:
                start = self._end(node.keywords[n - 1] if n else node.args[-1])
            yield self._at(head, "removed argument", keyword, "", start, end)

    def _operator(
        self, head: _Head, op: ast.AST, left: ast.expr,
        right: ast.expr, after: str = "",
    ) -> Iterator[Mutant]:  # fmt: skip
        """Yield the defect of an operator between two operands; its text is searched there."""
        if isinstance(op, ast.And | ast.Or):
            old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            kind = "condition"
        elif type(op) in _COMPARED:
            (old, new), kind = _COMPARED[type(op)], "comparison"
        elif type(op) in _CALCULATED and not (_is_text_value(left) or _is_text_value(right)):
            (old, new), kind = _CALCULATED[type(op)], "arithmetic"
        else:
            return
        start, end = self._end(left), self._start(right)
        pattern = rf"(?<!\w){old}(?!\w)" if old.isalpha() or " " in old else re.escape(old + after)
        place = re.search(pattern.encode(), self._source[start:end])
        if place is not None:
            a, b = start + place.start(), start + place.end()
            yield self._at(head, kind, left, new + after, a, b)

    # ------------------------------------------------------------------------ places

    def _at(
        self, head: _Head, kind: str, node: _Node, text: str,
        start: int | None = None, end: int | None = None,
    ) -> Mutant:  # fmt: skip
        start = self._start(node) if start is None else start
        end = self._end(node) if end is None else end
        line = self._source.count(b"\n", 0, start) + 1
        return Mutant(self._file, kind, line, head.lines, head.module_level, start, end, text)

    def _start(self, node: _Node) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: _Node) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _segment(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._start(node) : self._end(node)].decode()


def _head(node: ast.stmt, module_level: bool) -> _Head:
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return _Head(tuple(range(node.lineno, max(last, node.lineno) + 1)), module_level)


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Return what a conditional expression, a negation or a comprehension tests."""
    if isinstance(node, ast.IfExp):
        return [node.test]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return [test for one in node.generators for test in one.ifs]
    return []


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is_text_value(node.value)


def _is_text_value(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_nothing(node: ast.expr | None) -> bool:
    """Return whether a returned value is None, or False, for which callers take None, too."""
    return node is None or (isinstance(node, ast.Constant) and node.value in (None, False))


def _is_guard(node: ast.AST) -> TypeGuard[ast.keyword]:
    return isinstance(node, ast.keyword) and node.arg in _GUARDS


def _other_constant(value: object) -> list[str]:
    """Return replacements of a constant: the other truth value, the next integer, 10 % more."""
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1)]
    if isinstance(value, float):
        return [repr(value * 1.1 if value else 1.0)]
    return []


def _may_remove(node: ast.stmt) -> bool:
    """Return whether a statement has an effect of its own, beyond binding a name."""
    if isinstance(node, ast.Assign):
        return all(isinstance(one, ast.Attribute | ast.Subscript) for one in node.targets)
    return isinstance(
        node, ast.Expr | ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete
    )


def _may_swap(first: ast.stmt, second: ast.stmt) -> bool:
    """Return whether two neighbours can change places and both still find their names."""
    simple = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete)
    if not (isinstance(first, simple) and isinstance(second, simple)):
        return False
    if _is_text(first) or _is_text(second):
        return False
    bound = [
        {one.id for one in ast.walk(node) if isinstance(one, ast.Name)
         and isinstance(one.ctx, ast.Store)}
        for node in (first, second)
    ]  # fmt: skip
    used = [
        {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} for node in (first, second)
    ]
    independent = not (bound[0] & used[1] or bound[1] & used[0])
    # Two plain bindings commute: only effects have an order.
    effects = any(isinstance(one, ast.Expr | ast.AugAssign | ast.Delete) for one in (first, second))
    return independent and effects
