"""`--help`: the command's own flags first, the shared ones in named groups, at any width."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import shutil
import textwrap
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

OWN = "flags of this command alone"
NARROWEST, WIDEST = 40, 100


def help_page(config_class: type, default: Any, command: str, arguments: str = "") -> str:
    """The page of a command whose flags are a dataclass's fields; `default` has their values.

    `arguments` are typed without a flag, as in RUNS ..., so a field of that name has no line.
    """
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    about = inspect.cleandoc(config_class.__doc__ or "").splitlines()[0]
    usage_line = " ".join(filter(None, ["usage:", command, arguments, "[flags]"]))
    parts = [*folded(usage_line, width), *textwrap.wrap(about, width)]
    for title, fields in groups(config_class).items():
        names = [name for name in fields if name not in arguments.lower().split()]
        if names:
            parts += [
                "",
                *folded(f"{title}:", width),
                *(flag_lines(config_class, default, names, width)),
            ]
    return "\n".join(parts)


def groups(config_class: type) -> dict[str, list[str]]:
    """{title: fields}: those that the class declares itself, then its bases' by their docstrings."""
    own = set(config_class.__dict__.get("__annotations__", {}))
    found: dict[str, list[str]] = {OWN: []}
    fields = [field.name for field in dataclasses.fields(config_class) if field.init]
    found[OWN] = [name for name in fields if name in own]
    taken = set(found[OWN])
    for base in config_class.__mro__[1:-1]:
        declared = [n for n in base.__dict__.get("__annotations__", {}) if n in fields]
        title = inspect.cleandoc(base.__doc__ or base.__name__).splitlines()[0].rstrip(".")
        more = [name for name in declared if name not in taken]
        found[title] = found.pop(title, []) + more
        taken |= set(declared)
    return found


def flag_lines(config_class: type, default: Any, names: list[str], width: int) -> list[str]:
    """A line or more for each flag: how it is written, its value by default, what it does."""
    hints, texts = get_type_hints(config_class), field_docstrings(config_class)
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    column = 30 if width >= 70 else 6
    lines = []
    for name in names:
        value = default_value(fields[name]) if default is None else getattr(default, name)
        written = f"  {usage(name, hints[name])}"
        text = f"{' '.join(texts.get(name, '').split())} {default_text(value)}"
        wrapped = textwrap.wrap(text.strip(), width - column)
        if len(written) < column and wrapped:
            written = f"{written:{column}}{wrapped.pop(0)}"
        lines += [*folded(written, width), *(" " * column + rest for rest in wrapped)]
    return lines


def folded(line: str, width: int) -> list[str]:
    """A line that one types, in several where the terminal is narrower; choices part at their commas."""
    if len(line) <= width:
        return [line]
    spaced = line.replace(",", ", ")
    return textwrap.wrap(
        spaced,
        width,
        subsequent_indent=" " * 4,
        break_on_hyphens=False,
        break_long_words=False,
    )


def usage(name: str, hint: Any) -> str:
    """The flag with what follows it: --lr FLOAT, --[no-]resume, --ensemble {mean,min}."""
    flag = name.replace("_", "-")
    return f"--[no-]{flag}" if hint is bool else f"--{flag} {value_name(hint)}"


def value_name(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return "|".join(value_name(part) for part in arguments if part is not type(None))
    if origin is Literal:
        return "{" + ",".join(str(choice) for choice in arguments) + "}"
    if origin is tuple:
        return f"{value_name(arguments[0])} ..."
    return {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: "BOOL"}.get(hint, "VALUE")


def default_value(field: dataclasses.Field[Any]) -> Any:
    """What a field is without a flag; MISSING where the flag is required."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def default_text(value: Any) -> str:
    """(0.2), or nothing where the text says what is meant by None or by nothing."""
    if value is dataclasses.MISSING:
        return "(required)"
    if value is None or value == () or isinstance(value, bool):
        return "(on)" if value is True else ""
    if isinstance(value, tuple):
        return f"({' '.join(map(str, value))})"
    return f"({value})"


@functools.cache
def field_docstrings(config_class: type) -> dict[str, str]:
    """The string behind each field, of the class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(config_class.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except OSError:  # typed at a prompt
            continue
        assert isinstance(tree.body[0], ast.ClassDef)
        body = tree.body[0].body
        for field, text in zip(body, body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                if isinstance(text.value, ast.Constant) and isinstance(field.target, ast.Name):
                    texts[field.target.id] = str(text.value.value)
    return texts
