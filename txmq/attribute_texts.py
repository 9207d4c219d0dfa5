"""The texts below the attributes of a struct, which reference pages show."""

import ast
import inspect
import textwrap

from msgspec import Struct

__all__ = ["texts_under"]


def texts_under(shape: type[Struct]) -> dict[str, str]:
    """The text below each attribute in the source."""
    texts: dict[str, str] = {}
    for base in reversed(shape.__mro__):
        if base is Struct or not issubclass(base, Struct):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for above, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name):
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        texts[above.target.id] = inspect.cleandoc(text)
    return texts
