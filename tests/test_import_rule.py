"""cache <- replica <- cluster and cache <- router <- cluster; no other arrow between the packages."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "cache": set(),
    "replica": {"cache"},
    "router": {"cache"},
    "cluster": {"cache", "replica", "router"},
}
NOT_IN_CACHE = {"torch", "ray", "redis"}
TOP_LEVEL_FOLDERS = {"cache", "cluster", "deploy", "replica", "router", "tests"}


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
                yield node.lineno, str(node.args[0].value)


def module_level(tree: ast.Module) -> ast.Module:
    """The tree without the bodies of functions: what runs when the module is imported."""

    class Cut(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

    return Cut().visit(tree)


def sources(package: str) -> list[Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"{package} holds no Python"
    return files


def violations(package: str, files: list[Path]) -> list[str]:
    forbidden = set(ALLOWED) - ALLOWED[package] - {package} | {"tests", "deploy"}
    found = []
    for path in files:
        for line, module in imported_modules(ast.parse(path.read_text(), str(path))):
            if module.partition(".")[0] in forbidden:
                found.append(f"{path}:{line} imports {module}")
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_only_the_allowed_arrows(package: str) -> None:
    assert violations(package, sources(package)) == []


def test_cache_imports_no_torch_ray_or_redis_at_module_level() -> None:
    found = []
    for path in sources("cache"):
        for line, module in imported_modules(module_level(ast.parse(path.read_text()))):
            if module.partition(".")[0] in NOT_IN_CACHE:
                found.append(f"{path}:{line} imports {module}")
    assert found == []


# The folders of each package, what is built upon first: a folder imports from those before it alone. Modules that lie
# in the package itself are bound only by having no circle.
LAYERS = {
    "cache": ["wire", "tiers"],
    "replica": ["sampling", "text", "attention", "kernels", "model", "engine", "channel"],
    "router": ["load", "index", "policies", "following"],
    "cluster": [
        "text.tool_forms", "text", "api", "machine", "models", "haproxy", "serving.transport", "serving", "local",
        "lab", "commands",
    ],
}  # fmt: skip


def folder_of(module: str, folders: list[str]) -> str | None:
    inside = module.partition(".")[2] + "."
    return max((folder for folder in folders if inside.startswith(folder + ".")), key=len, default=None)


@pytest.mark.parametrize("package", LAYERS)
def test_every_folder_has_its_layer(package: str) -> None:
    folders = {".".join(path.relative_to(ROOT / package).parent.parts) for path in sources(package)}
    assert folders - {""} == set(LAYERS[package])


@pytest.mark.parametrize("package", LAYERS)
def test_arrows_between_the_folders_of_a_package_point_one_way(package: str) -> None:
    assert upward_arrows(package, ROOT) == []


def upward_arrows(package: str, root: Path) -> list[str]:
    layers, found = LAYERS[package], []
    for path in sorted((root / package).rglob("*.py")):
        own = folder_of(".".join(path.relative_to(root).with_suffix("").parts), layers)
        for line, module in imported_modules(ast.parse(path.read_text())):
            other = folder_of(module, layers) if module.partition(".")[0] == package else None
            if own is not None and other is not None and layers.index(other) > layers.index(own):
                found.append(f"{path.relative_to(root)}:{line} imports {module}")
    return found


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("replica/sampling/sampler.py", "from replica.engine.engine import Engine"),
        ("router/load/views.py", "def f():\n    import router.following.stream"),
        ("cluster/serving/transport/inbox.py", "from cluster.serving import relay"),
    ],
)
def test_the_walk_sees_an_upward_arrow(tmp_path: Path, path: str, code: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(code)
    assert len(upward_arrows(path.partition("/")[0], tmp_path)) == 1


def test_no_module_imports_itself_through_others() -> None:
    """Arrows between modules point one way."""
    paths = [path for package in ALLOWED for path in sources(package)]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    arrows = {name: set(arrows_of(name, path, names)) for name, path in names.items()}
    while arrows:
        leaves = {name for name, targets in arrows.items() if not targets & arrows.keys()}
        assert leaves, f"in a circle: {sorted(arrows)}"
        arrows = {name: targets for name, targets in arrows.items() if name not in leaves}


def arrows_of(name: str, path: Path, names: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(module_level(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (module if module in names else node.module for module in whole)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_deploy_holds_no_python() -> None:
    assert list((ROOT / "deploy").rglob("*.py")) == []


def test_no_other_top_level_folder() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    folders = {name.partition("/")[0] for name in tracked.stdout.splitlines() if "/" in name}
    assert {name for name in folders if not name.startswith(".")} == TOP_LEVEL_FOLDERS


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("cache", "import replica.engine.engine"),
        ("replica", "def f():\n    from router.load import Load"),
        ("router", "import importlib\nimportlib.import_module('replica')"),
        ("router", "from cluster import app"),
        ("cluster", "from tests import conftest"),
    ],
)
def test_the_walk_sees_a_wrong_arrow(tmp_path: Path, package: str, code: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(code)
    assert len(violations(package, [path])) == 1
