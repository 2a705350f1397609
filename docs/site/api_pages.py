"""Reference pages from signatures and docstrings, read from the source: shapes stand in comments."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import files
from files import ROOT

PACKAGES = ("data", "gpt", "reward_model", "rl")
Definition = ast.FunctionDef | ast.ClassDef


def modules() -> list[str]:
    """The packages' files with something to say, in the order of the imports."""
    names = [n for n in files.tracked() if n.endswith(".py") and n.split("/")[0] in PACKAGES]
    return sorted(names, key=lambda n: (PACKAGES.index(n.split("/")[0]), n.count("/") > 1, n))


def module_name(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def escaped(text: str) -> str:
    """Running text of a docstring; code and *emphasis* stay what they are."""
    parts = re.split(r"(`[^`]+`|(?<!\w)\*\w[\w ]*\*(?!\w))", text)
    return "".join(
        part if at % 2 else re.sub(r"([\\*_$<>\[\]|{}#~])", r"\\\1", part)
        for at, part in enumerate(parts)
    )


def docstring_markdown(text: str) -> str:
    """A docstring as Markdown: indented blocks stay as they are, paragraphs flow."""
    blocks, result = re.split(r"\n\s*\n", text), []
    for block in blocks:
        lines = block.splitlines()
        literal = all(line.startswith("    ") for line in lines if line.strip())
        if literal and result and result[-1].startswith("```"):
            result[-1] = result[-1].removesuffix("```") + "\n" + block + "\n```"
        elif literal and block.strip():
            result.append(f"```text\n{block}\n```")
        else:
            result.append(flowing(lines))
    return "\n\n".join(result) + "\n"


def flowing(lines: list[str]) -> str:
    """A paragraph; lines that are indented deeper stay lines of their own."""
    out: list[str] = []
    for line in lines:
        deeper = line.startswith("  ") and not line.lstrip().startswith(("- ", "* "))
        out.append(("\\\n" if deeper and out else "\n" if out else "") + escaped(line.strip()))
    return re.sub(r"(?m)^\\([*-]) ", r"\1 ", "".join(out))


def signature(node: Definition, lines: list[str]) -> str:
    """The lines from the first decorator to the body, comments included."""
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    body = node.body[0].lineno if node.body else node.lineno + 1
    last = max(node.lineno, body - 1)
    if isinstance(node, ast.ClassDef):
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
        documented = ast.get_docstring(node) is not None
        head = (
            lines[first - 1 : node.body[0].lineno - 1]
            if documented
            else lines[first - 1 : body - 1]
        )
        rest = lines[fields[0].lineno - 1 : end_of_fields(node)] if fields else []
        return "\n".join(head or lines[first - 1 : node.lineno]) + "\n" + "\n".join(rest)
    return "\n".join(lines[first - 1 : last])


def end_of_fields(node: ast.ClassDef) -> int:
    """The last line of a class's fields, with the text that documents the last one."""
    last = 0
    for child, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(child, ast.AnnAssign):
            last = child.end_lineno or child.lineno
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                last = after.end_lineno or after.lineno
    return last


def entry(node: Definition, name: str, lines: list[str], level: str = "##", owner: str = "") -> str:
    """Heading, signature, docstring, and the public methods of a class."""
    title = f"{owner}{node.name}"
    code = f"code/{name}"
    text = f'<a id="{title}"></a>\n\n{level} {escaped(title)}\n\n'
    text += f"```python\n{signature(node, lines)}\n```\n\n"
    text += docstring_markdown(ast.get_docstring(node) or "")
    text += f"\n[source](<{code}#L{node.lineno}>)\n"
    if isinstance(node, ast.ClassDef):
        for method in public(node.body):
            if isinstance(method, ast.FunctionDef):
                text += "\n" + entry(method, name, lines, "###", f"{node.name}.")
    return text


def public(body: list[ast.stmt]) -> list[Definition]:
    """Definitions without a leading underscore that are documented."""
    found = [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    return [n for n in found if not n.name.startswith("_") and ast.get_docstring(n)]


def module_page(name: str) -> str:
    text = (ROOT / name).read_text("utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    links = f"[all modules](/api/index.md), [source](<code/{name}>)"
    page = f"---\norphan: true\n---\n# {escaped(module_name(name))}\n\n{links}\n\n"
    page += docstring_markdown(ast.get_docstring(tree) or "")
    return page + "\n" + "\n".join(entry(node, name, lines) for node in public(tree.body))


def titles(name: str) -> list[str]:
    """What a module's page has entries for: functions, classes and `Class.method`."""
    found = []
    for node in public(ast.parse((ROOT / name).read_text("utf-8")).body):
        found.append(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [m for m in public(node.body) if isinstance(m, ast.FunctionDef)]
            found += [f"{node.name}.{method.name}" for method in methods]
    return found


def summary(name: str) -> str:
    docstring = ast.get_docstring(ast.parse((ROOT / name).read_text("utf-8"))) or ""
    return escaped(docstring.split("\n\n")[0].replace("\n", " "))


def neighbours(page: str) -> str:
    """A sidebar for a module's page: the modules of its folder, itself among them."""
    shown = [n for n in modules() if not n.endswith("__init__.py")]
    own = next(Path(n).parent for n in shown if f"api/{module_name(n)}" == page)
    items = []
    for name in (module_name(n) for n in shown if Path(n).parent == own):
        here = " current-page" if f"api/{name}" == page else ""
        link = f'<a class="reference" href="{name}.html">{name.rsplit(".", 1)[-1]}</a>'
        items.append(f'<li class="toctree-l1{here}">{link}</li>')
    top = '<li class="toctree-l1"><a class="reference" href="index.html">All modules</a></li>'
    caption = f'<p class="caption"><span class="caption-text">{own}/</span></p>'
    return f"<ul>{top}</ul>{caption}<ul>{''.join(items)}</ul>"


def pages() -> dict[str, str]:
    """Page -> Markdown: one page a module, one index."""
    shown = [n for n in modules() if not n.endswith("__init__.py")]
    result = {f"api/{module_name(n)}": module_page(n) for n in shown}
    index = (
        "# The code, module by module\n\nSignatures and docstrings, with the shapes that stand in "
        "the signatures as comments. Imports point one way: data, gpt, reward_model, rl. Every "
        "file of the repository, with its lines numbered: [all files](<code/>).\n"
    )
    for group in dict.fromkeys(str(Path(n).parent) for n in shown):
        members = [n for n in shown if str(Path(n).parent) == group]
        index += f"\n## {escaped(group.replace('/', '.'))}\n\n| module | |\n|---|---|\n"
        for n in members:
            index += f"| [{escaped(module_name(n))}](/api/{module_name(n)}.md) | {summary(n)} |\n"
    return result | {"api/index": index}
