"""The rules of the house as functions from source text to a list of violations; each violation is one sentence."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Sources = Mapping[str, str]  # dotted module name -> source text; a package goes by its own name


def modules(below: str = "quantail") -> dict[str, str]:
    """Every module of the package at or below a dotted name, with its source text."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name == below or name.startswith(f"{below}."):
            found[name] = path.read_text(encoding="utf-8")
    return found


def packages() -> set[str]:
    """The dotted names that are packages: relative imports start one level higher in a plain module."""
    return {".".join(path.parent.relative_to(SOURCE).parts) for path in SOURCE.rglob("__init__.py")}


# --- imports ---------------------------------------------------------------------------------------------------------


def imports(name: str, source: str, is_package: bool = False) -> list[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, wherever in the file, also by `import_module("...")`.

    `from a import b` gives `a.b`: whether b is a module or an attribute is for the caller to decide. Imports under
    `if TYPE_CHECKING:` do not count: `types.py` names records of higher floors in its annotations (a loss term takes an
    agent), and nothing of that exists when the program runs.
    """
    found: list[tuple[int, str]] = []
    for node in running_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join([*above, *filter(None, [node.module])])
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            literal = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else "?"
            found.append((node.lineno, str(literal)))
    return found


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node except those that only a type checker reads."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield other
                yield from running_nodes(other)
            continue
        yield child
        yield from running_nodes(child)


def called(node: ast.Call) -> str:
    """The last name of what is called: `torch.randn(2)` -> randn."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def edges(sources: Sources, packages: Iterable[str] = ()) -> Iterator[tuple[str, int, str]]:
    """(importer, line, imported) for imports inside the package, each resolved to the deepest module that exists."""
    packages = set(packages)
    for name, source in sources.items():
        for line, target in imports(name, source, name in packages):
            while target and target not in sources:
                target = target.rpartition(".")[0]
            if target and target != name:
                yield name, line, target


def unit(module: str) -> str:
    """The part of the house a module belongs to: quantail.functional.risk -> functional."""
    return module.split(".")[1] if "." in module else "__init__"


def upward(sources: Sources, floors: Sequence[Sequence[str]], packages: Iterable[str] = ()) -> list[str]:
    """Imports that point up, given the floors of the house from the roof down."""
    floor = {name: level for level, names in enumerate(reversed(floors)) for name in names}
    bad = [
        f"{name} is not in the table of floors; add {unit(name)!r} there, on the floor DESIGN gives it"
        for name in sources
        if unit(name) not in floor and unit(name) != "__init__"
    ]
    if bad:
        return bad
    floor["__init__"] = len(floors) - 1  # the lazy facade shows everything, so only the roof may look through it
    return [
        f"{name}:{line} imports {target}: {unit(name)} may not know of {unit(target)}; hand it down as a value"
        for name, line, target in edges(sources, packages)
        if unit(name) != "__init__" and floor[unit(target)] > floor[unit(name)]
    ]


def opaque_imports(sources: Sources, allowed: Iterable[str]) -> list[str]:
    """Imports whose target is computed: nobody can see which way they point."""
    return [
        f"{name}:{line} imports a module by a computed name; write the name down"
        for name, source in sources.items()
        if name not in set(allowed)
        for line, target in imports(name, source)
        if target == "?"
    ]


def cycles(sources: Sources, packages: Iterable[str] = ()) -> list[str]:
    """Circles of imports, between the units of the house and between the modules of one unit."""
    by_module: dict[str, set[str]] = {}
    by_unit: dict[str, set[str]] = {}
    for name, _, target in edges(sources, packages):
        if "__init__" in (unit(name), unit(target)):
            continue
        if unit(name) != unit(target):
            by_unit.setdefault(unit(name), set()).add(unit(target))
        if not name.startswith(f"{target}."):  # a module may name its own package to reach a neighbour
            by_module.setdefault(name, set()).add(target)
    return [f"imports go in a circle: {' -> '.join(circle)}" for graph in (by_unit, by_module) for circle in _circles(graph)]


def _circles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> Iterator[list[str]]:
        if node in path:
            yield [*path[path.index(node) :], node]
        elif node not in done:
            for target in sorted(graph.get(node, ())):
                yield from walk(target, [*path, node])
            done.add(node)

    for node in sorted(graph):
        yield from walk(node, [])


def foreign(sources: Sources, allowed: Iterable[str]) -> list[str]:
    """Imports from outside the allowed top-level packages."""
    allowed = set(allowed)
    return [
        f"{name}:{line} imports {target}, which the light core must do without; move it to an edge module"
        for name, source in sources.items()
        for line, target in imports(name, source, is_package=True)
        if target != "?" and target.split(".")[0] not in allowed
    ]


# --- state -----------------------------------------------------------------------------------------------------------

RANDOM = re.compile(
    r"(rand|randn|randint|randperm|normal|bernoulli|multinomial|poisson)(_like)?_?"
    r"|(uniform|exponential|cauchy|log_normal|geometric|random)_|Generator|default_generator|manual_seed|(\w*_)?dropout"
)
CACHES = ("cache", "lru_cache", "cached_property", "cached")
IMMUTABLE_CALLS = ("frozenset", "TypeVar", "NewType", "torch.finfo", "torch.iinfo", "float", "int")
RECORDS = ("NamedTuple", "Protocol", "Enum", "StrEnum", "IntEnum")
MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


def state(source: str) -> list[str]:
    """Where a module could remember something, draw random numbers or talk to the outside."""
    tree = ast.parse(source)
    bad = [sentence for node in tree.body for sentence in _module_level(node)]
    for node in ast.walk(tree):
        bad += _statement_state(node)
    return bad


def _module_level(node: ast.stmt) -> list[str]:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.Expr(value=ast.Constant(value=str())):
            return []
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return []
        case ast.ClassDef():
            return (
                []
                if _is_record(node)
                else [f"line {node.lineno}: class {node.name} is no NamedTuple, frozen dataclass or enum"]
            )
        case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value):
            if name == "__all__":
                return []
            constant = re.fullmatch(r"_?[A-Z][A-Z0-9_]*|__\w+__", name) and value is not None and immutable(value)
            alias = re.fullmatch(r"_?[A-Z]\w*", name) and isinstance(value, ast.Subscript | ast.BinOp) and immutable(value)
            return [] if constant or alias else [f"line {node.lineno}: {name} at module level is no immutable constant"]
    return [f"line {node.lineno}: `{ast.unparse(node).splitlines()[0]}` runs at module level"]


def _is_record(node: ast.ClassDef) -> bool:
    frozen = any(
        isinstance(decorator, ast.Call)
        and called(decorator) == "dataclass"
        and any(keyword.arg == "frozen" and ast.unparse(keyword.value) == "True" for keyword in decorator.keywords)
        for decorator in node.decorator_list
    )
    return frozen or any(ast.unparse(base).split(".")[-1] in RECORDS for base in node.bases)


def immutable(node: ast.expr) -> bool:
    """An expression whose value nobody can change later."""
    match node:
        case ast.Constant() | ast.Name() | ast.Lambda():
            return True
        case ast.Attribute():
            return immutable(node.value)
        case ast.Tuple():
            return all(map(immutable, node.elts))
        case ast.UnaryOp():
            return immutable(node.operand)
        case ast.BinOp():
            return immutable(node.left) and immutable(node.right)
        case ast.Subscript():
            return True
        case ast.Call():
            name = ast.unparse(node.func)
            return name in IMMUTABLE_CALLS or name.startswith("math.")
    return False


def _statement_state(node: ast.AST) -> list[str]:
    at = f"line {getattr(node, 'lineno', 0)}:"
    match node:
        case ast.Global() | ast.Nonlocal():
            return [f"{at} {type(node).__name__.lower()} {', '.join(node.names)}"]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [f"{at} {sentence}" for sentence in [*_defaults(node), *_decorators(node)]]
        case ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.Delete():
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            return [
                f"{at} writes {ast.unparse(part)}"
                for target in targets
                for part in ast.walk(target)
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store | ast.Del)
            ]
        case ast.Call():
            name = called(node)
            if RANDOM.fullmatch(name):
                return [f"{at} {name}() draws random numbers; take the noise as a tensor"]
            if name in ("setattr", "__setattr__", "delattr", "open", "print", "input"):
                return [f"{at} {name}() has an effect outside"]
        case ast.Import() | ast.ImportFrom():
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            return [f"{at} imports {name}" for name in names if name in ("random", "numpy.random", "torch.distributions")]
    return []


def _defaults(node: Function) -> list[str]:
    defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    return [
        f"{node.name} has the mutable default {ast.unparse(default)}"
        for default in defaults
        if isinstance(default, MUTABLE) or (isinstance(default, ast.Call) and not immutable(default))
    ]


def _decorators(node: Function) -> list[str]:
    names = [ast.unparse(item.func if isinstance(item, ast.Call) else item).split(".")[-1] for item in node.decorator_list]
    return [f"{node.name} is remembered by @{name}" for name in names if name in CACHES]


# --- names -----------------------------------------------------------------------------------------------------------


def remembered_names(source: str) -> list[str]:
    """`_last_*` names, and attributes of self looked up by guess."""
    bad = []
    for node in ast.walk(ast.parse(source)):
        names = [getattr(node, field, None) for field in ("id", "attr", "arg", "name")]
        bad += [
            f"line {getattr(node, 'lineno', 0)}: {name}: last when, after a resume? Pass the value"
            for name in names
            if isinstance(name, str) and re.fullmatch(r"_last_\w+", name)
        ]
        if isinstance(node, ast.Call) and re.match(r"(get|has|set)attr\(self\b", ast.unparse(node)):
            bad.append(f"line {node.lineno}: {ast.unparse(node)} guesses; name the attribute")
    return bad


# --- size ------------------------------------------------------------------------------------------------------------


def oversize(source: str, module_lines: int, function_lines: int, parameters: int) -> list[tuple[str, str]]:
    """(what, sentence) for a module, function or parameter list beyond its limit; what is "" for the module."""
    bad = []
    if (length := len(source.splitlines())) > module_lines:
        bad.append(("", f"{length} lines, at most {module_lines}"))
    code = code_lines(source)
    for node in functions(source):
        if (length := sum(node.lineno <= line <= (node.end_lineno or node.lineno) for line in code)) > function_lines:
            bad.append((node.name, f"{node.name} has {length} lines of code, at most {function_lines}"))
        names = [argument.arg for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
        if (count := len([name for name in names if name not in ("self", "cls")])) > parameters:
            bad.append((node.name, f"{node.name} takes {count} parameters, at most {parameters}; make a record"))
    return bad


def functions(source: str) -> list[Function]:
    """Every function and method."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]


def code_lines(source: str) -> set[int]:
    """Lines that hold code: not blank, no comment, no docstring."""
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skip:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


# --- docstrings ------------------------------------------------------------------------------------------------------

# A name and a year, "Rockafellar & Uryasev 2000", "Nam, Kim & Park 2021"; or the page of ours that derives it,
# "Source: docs/algorithms.md, ..."; or "Source: definition" where there is nothing to derive.
SOURCE_OF_FORMULA = re.compile(r"[A-Z][\w'’.,&–\- ]*\s\(?(19|20)\d\d\b|Source: (docs/|definition\b)")
FORMULA = re.compile(r"[=≈≤≥∝∫Σ∏√·²½−]|\blog\b")
SHAPES = re.compile(r"(\[[^\]]*\]|\bscalar\b).*(->|→)|(->|→).*(\[[^\]]*\]|\bscalar\b)", re.DOTALL)


def public_functions(source: str) -> list[Function]:
    """The functions of a module that do not start with an underscore; methods and inner functions are not asked."""
    return [node for node in ast.parse(source).body if isinstance(node, Function) and not node.name.startswith("_")]


def undocumented(source: str) -> list[str]:
    """Public functions whose docstring lacks a formula, its source, or the shapes in and out."""
    bad = []
    for node in public_functions(source):
        text = "\n".join(line for line in (ast.get_docstring(node) or "").splitlines() if ">>>" not in line)
        lacks = [
            what
            for what, pattern in (
                ("a formula (an = or another sign of mathematics)", FORMULA),
                ("its source (a name and a year, as in `Nam et al. 2021`)", SOURCE_OF_FORMULA),
                ("shapes in and out (as in `x [..., n] -> [...]`)", SHAPES),
            )
            if not pattern.search(text)
        ]
        if lacks:
            bad.append(f"line {node.lineno}: the docstring of {node.name} lacks {' and '.join(lacks)}")
    return bad
