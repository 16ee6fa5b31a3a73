"""Imports go one way: equations know no optimizer, optimizers know no equation."""

import ast
from pathlib import Path

import natpinn

PACKAGE = Path(natpinn.__file__).parent

# Every module may import from the layers above its own, and from its own folder.
LAYERS = [
    {"errors"},
    {"checks", "machine", "memory", "programs"},
    {"schedule", "models", "domains", "parallel"},
    {"equations"},
    {"least_squares"},
    {"problems", "solvers"},
    {"optimizers"},
    {"training"},
    {"planning", "pictures"},
    {"runs", "bench"},
    {"search", "report"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imported_modules(path: Path) -> set[str]:
    """The top-level natpinn modules that a file imports."""
    inside = path.relative_to(PACKAGE).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = inside[: len(inside) - node.level + 1]
            target = [*base, *(node.module or "").split(".")] if node.module else list(base)
            names = target[:1] or [alias.name for alias in node.names]
            found |= set(names)
    return found & LEVEL.keys()


def module_name(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def test_every_module_has_a_layer():
    assert {module_name(path) for path in FILES} == LEVEL.keys()


def test_imports_go_one_way():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {target}"
        for path in FILES
        for target in imported_modules(path) - {module_name(path)}
        if LEVEL[target] >= LEVEL[module_name(path)]
    ]
    assert not wrong


def test_problems_and_optimizers_do_not_know_each_other():
    equations = {"problems", "equations", "domains"}
    methods = {"optimizers", "solvers"}
    for path in FILES:
        if module_name(path) in equations:
            assert not imported_modules(path) & methods, path
        if module_name(path) in methods:
            assert not imported_modules(path) & equations, path
