"""Imports go one way: equations know no optimizer, optimizers know no equation.

What is not public is imported only from where one may know of it: by the layers below, and by the
tests that stand in the folder of such a layer.
"""

import ast
from pathlib import Path

import natpinn

PACKAGE = Path(natpinn.__file__).parent

# Every module may import from the layers above its own, and from its own folder.
LAYERS = [
    {"errors", "precision"},
    {"checks", "files", "machine", "memory", "programs"},
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


TESTS = Path(__file__).parent
ROOT = TESTS.parent
PUBLIC_MODULES = {"natpinn", "natpinn.problems", "natpinn.cli"}  # the last: its `main` is a command
USERS = [  # of the package: files that import from the root alone
    *sorted(TESTS.glob("*.py")),
    *(path for name in ("examples", "benchmarks") for path in sorted((ROOT / name).glob("*.py"))),
]
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


def private_imports(path: Path) -> list[str]:
    """The modules and names of the package that a file imports, and that are not public."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found += [n for n in names if n.startswith("natpinn.") and n not in PUBLIC_MODULES]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = str(node.module)
            if module == "natpinn":
                public = {*natpinn.__all__, "problems"}
                found += [f"natpinn.{a.name}" for a in node.names if a.name not in public]
            elif module.startswith("natpinn.") and module not in PUBLIC_MODULES:
                found.append(module)
    return found


def test_users_import_what_is_public():
    wrong = [f"{path.name} imports {name}" for path in USERS for name in private_imports(path)]
    assert not wrong


def test_tests_of_a_layer_know_that_layer_and_those_above():
    wrong = [
        f"{path.relative_to(TESTS)} imports {name}"
        for path in sorted(TESTS.glob("*/*.py"))
        for name in private_imports(path)
        if LEVEL[name.split(".")[1]] > LEVEL[path.parent.name]
    ]
    assert not wrong
