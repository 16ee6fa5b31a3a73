"""What is public explains itself in one form, and the examples of its docstrings run.

The form: a sentence; then **Arguments:** with every argument and its default; **Returns:** and
**Raises:** where there is something to say; an indented example at the end. A contract says what a
subclass defines, and a result what its fields are.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import warnings
from typing import Any

import equinox as eqx
import pytest

import natpinn

USED = ("Box", "Condition", "Data", "Domain", "Problem", "Solution", "TimeSpace", "Union")
SOLUTION = ("model", "problem", "history", "summary", "config", "folder")  # its public attributes


def public_names() -> dict[str, Any]:
    """All functions and classes that users find at the root and in natpinn.problems."""
    root = {f"natpinn.{name}": getattr(natpinn, name) for name in natpinn.__all__}
    problems = {f"natpinn.problems.{name}": found for name, found in vars(natpinn.problems).items()}
    return {
        name: found
        for name, found in (root | problems).items()
        if not name.rpartition(".")[2].startswith("_")
        and (inspect.isclass(found) or inspect.isfunction(found))
    }


def members(kind: type) -> dict[str, Any]:
    """The public methods and properties that natpinn gives a class, inherited ones included."""
    found = {}
    for parent in reversed(kind.__mro__):
        if parent.__module__.startswith("natpinn"):
            names = [name for name in vars(parent) if not name.startswith("_")]
            found |= {name: inspect.getattr_static(parent, name) for name in names}
    return {name: found for name, found in found.items() if is_member(found)}


def is_member(found: Any) -> bool:
    return isinstance(found, property | classmethod) or inspect.isroutine(found)


def docstring(kind: type, member: str) -> str:
    """That of a method, its own or inherited."""
    texts = (getattr(vars(parent).get(member), "__doc__", None) for parent in kind.__mro__)
    return inspect.cleandoc(next((text for text in texts if text), ""))


PUBLIC = public_names()
CLASSES = {name: found for name, found in PUBLIC.items() if inspect.isclass(found)}
FUNCTIONS = {name: found for name, found in PUBLIC.items() if inspect.isfunction(found)}
METHODS = {
    f"natpinn.{kind}.{name}": (getattr(natpinn, kind), name, found)
    for kind in USED
    for name, found in members(getattr(natpinn, kind)).items()
    if not isinstance(found, property)
}


def part(text: str, name: str) -> str:
    """One part of a docstring, up to the next part or the example."""
    found = re.search(rf"^\*\*{name}:\*\*(.*?)(?=^\*\*|^    |\Z)", text, re.S | re.M)
    return "" if found is None else found[1]


def example(text: str) -> str:
    """The indented block at the end."""
    lines = text.split("\n")
    flush = [i for i, line in enumerate(lines) if line and not line.startswith("    ")]
    return textwrap.dedent("\n".join(lines[flush[-1] + 1 :])).strip() if flush else ""


def raises(found: Any) -> bool:
    """Whether a function raises something itself, or a class where it is made."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
    made = {"__init__", "__check_init__"} if inspect.isclass(found) else {found.__name__}
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in made]
    return any(isinstance(node, ast.Raise) for f in functions for node in ast.walk(f))


def no_sentence(text: str) -> list[str]:
    first = text.split("\n\n")[0]
    is_sentence = first.endswith(".") and "\n" not in first
    return [] if is_sentence else ["the first line is one sentence"]


def no_example(text: str) -> list[str]:
    code = example(text)
    return [] if re.search(r"^(import|from) natpinn", code, re.M) else ["an example at the end"]


def no_arguments(text: str, signature: inspect.Signature) -> list[str]:
    """Arguments that are not named, or whose default is not told."""
    said = part(text, "Arguments")
    items = re.split(r"^- ", said, flags=re.M)
    lacking = []
    for name, parameter in signature.parameters.items():
        item = next((item for item in items if f"`{name}`" in item.partition(":")[0]), "")
        item = item or (said if len(items) == 1 and f"`{name}`" in said else "")
        if not item:
            lacking.append(f"the argument `{name}`")
        elif parameter.default is not parameter.empty and not re.search("Default|as in `", item):
            lacking.append(f"the default of `{name}`")
    return lacking


def call(function: Any, text: str) -> list[str]:
    """What a function or a method lacks."""
    signature = inspect.signature(function)
    own = [p for name, p in signature.parameters.items() if name not in ("self", "cls")]
    lacking = no_sentence(text) + no_arguments(text, signature.replace(parameters=own))
    if signature.return_annotation is not None and not part(text, "Returns"):
        lacking.append("**Returns:**")
    if raises(function) and not part(text, "Raises"):
        lacking.append("**Raises:**")
    return lacking + no_example(text)


def fields(kind: type) -> tuple[str, ...] | None:
    """Those of a result that natpinn makes; None for what users make."""
    if kind is natpinn.Solution:
        return SOLUTION
    if dataclasses.is_dataclass(kind) and not issubclass(kind, eqx.Module):
        return tuple(field.name for field in dataclasses.fields(kind))
    return getattr(kind, "_fields", None)


def construction(kind: type) -> list[str]:
    """What a class lacks."""
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    abstract, found = getattr(kind, "__abstractmethods__", ()), fields(kind)
    if abstract:
        said = text.partition("subclass\ndefines")[2] or text.partition("subclass defines")[2]
        lacking = [f"that a subclass defines `{m}`" for m in abstract if f"`{m}" not in said]
        return no_sentence(text) + lacking
    if found is not None:
        return no_sentence(text) + [f"its field `{f}`" for f in found if f"`{f}`" not in text]
    if issubclass(kind, Exception):
        return no_sentence(text) + no_example(text)
    lacking = no_sentence(text) + no_arguments(text, inspect.signature(kind))
    if raises(kind) and not part(text, "Raises"):
        lacking.append("**Raises:**")
    return lacking + no_example(text)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_say_what_they_take_and_return(name):
    assert not call(FUNCTIONS[name], inspect.getdoc(FUNCTIONS[name]) or "")


@pytest.mark.parametrize("name", CLASSES)
def test_classes_say_how_they_are_made_or_what_they_hold(name):
    assert not construction(CLASSES[name])


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_users_call_say_what_they_take_and_return(name):
    kind, member, found = METHODS[name]
    function = found.__func__ if isinstance(found, classmethod) else found
    assert not call(function, docstring(kind, member))


@pytest.mark.parametrize("name", CLASSES)
def test_all_other_methods_have_a_docstring(name):
    kind = CLASSES[name]
    assert not [member for member in members(kind) if not docstring(kind, member)]


def test_help_begins_with_what_a_thing_is():
    texts = [inspect.getdoc(found) or "" for found in PUBLIC.values()]
    assert not [text for text in texts if text.startswith(("**", "`", "Return", "This"))]
    assert (inspect.getdoc(natpinn.Box) or "").startswith("A box")


def examples() -> dict[str, dict[str, str]]:
    """The code of each public docstring, by the folder of the package, each docstring once."""
    texts = {name: inspect.getdoc(found) or "" for name, found in PUBLIC.items()}
    texts |= {name: docstring(kind, member) for name, (kind, member, _) in METHODS.items()}
    folders: dict[str, dict[str, str]] = {}
    seen: set[str] = set()
    for name, text in texts.items():
        code = example(text)
        if code and code not in seen:
            seen.add(code)
            kind = METHODS[name][0] if name in METHODS else PUBLIC[name]
            folders.setdefault(kind.__module__.split(".")[1], {})[name] = code
    return folders


EXAMPLES = examples()


@pytest.mark.slow
@pytest.mark.parametrize("folder", EXAMPLES)
def test_examples_run(folder, tmp_path, monkeypatch):
    for name, code in EXAMPLES[folder].items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        try:
            with warnings.catch_warnings():
                exec(compile(code, f"<the example of {name}>", "exec"), {"__name__": "__main__"})
        except Exception as error:
            error.add_note(f"in the example of {name}")
            raise
