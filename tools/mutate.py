"""Would the tests notice? Break the code on purpose, one small fault at a time, and see which tests stay green.

    python tools/mutate.py                           every fault of the table; fails if one survives
    python tools/mutate.py --survey 200 [--seed 1]   random one-token faults in functional/; lists the survivors

Each fault is applied to a copy of the sources, never to the working tree, and only the tests named beside it run. A
fault is caught if a test *fails*. Tests that cannot even be collected, or never end, prove nothing: such a fault is
broken, and the table has to be mended.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MATHS = "src/quantail/functional"
WORKERS = 2
TIMEOUT_SECONDS = 300


# The tests that ought to notice a fault in a module: tests/functional/test_*.py.
SUITES = {
    "returns": ("returns", "advantages", "particles", "vtrace"),
    "quantile": ("quantile", "value_clipping"),
    "risk": ("risk", "readout", "pid", "laws"),
    "laws": ("laws",),
    "categorical": ("categorical", "value_clipping"),
    "policy": ("policy",),
    "actions": ("actions",),
    "moments": ("moments",),
}


class Mutant(NamedTuple):
    """One fault: this text, which stands in the file exactly once, becomes that text."""

    module: str  # below src/quantail/functional, without .py
    original: str
    fault: str
    says: str


# Signs, off-by-ones, masks, clip sides, divisors: the faults one makes at two in the morning. Longer originals only make
# the place unique; what changes is one token.
TABLE = (
    # time and episodes
    Mutant("returns", "deltas = rewards + gamma", "deltas = rewards - gamma", "GAE subtracts the next value"),
    Mutant("returns", "where(rows.terminated, 0.0", "where(rows.truncated, 0.0", "a truncation bootstraps nothing"),
    Mutant("returns", "where(rows.truncated, final", "where(rows.terminated, final", "final values at terminations"),
    Mutant("returns", "~(terminated | truncated)", "~(terminated & truncated)", "sums run across episode ends"),
    Mutant("returns", "goes_on[:-1]])", "goes_on[1:]])", "validity shifted by a row"),
    Mutant("returns", "decay[t] * sums[-1]", "decay[t] * sums[0]", "sums forget the rows behind"),
    Mutant("returns", "(follow_noise < lam)", "(follow_noise > lam)", "particles follow with probability 1 − λ"),
    Mutant("returns", "max=math.log(c_max)", "min=math.log(c_max)", "V-trace cuts the small weights"),
    Mutant("returns", "/ total).sqrt()", "/ (total - 1)).sqrt()", "advantages divided by n − 1"),
    Mutant("returns", "std <= 64 * FLOAT32_EPS", "std <= 0 * FLOAT32_EPS", "rounding noise passes for a signal"),
    # quantiles
    Mutant("quantile", "edges[1:]) / 2)", "edges[1:]) / 3)", "levels off the middle of their cells"),
    Mutant("quantile", "(steps[:packed] + 0.5)", "(steps[:packed] + 1.5)", "tail levels shifted by a cell"),
    Mutant("quantile", "where(error < 0", "where(error > 0", "the loss learns 1 − τ"),
    Mutant("quantile", "error - 0.5 * inner", "error + 0.5 * inner", "the Huber loss is steeper than its name"),
    Mutant("quantile", "clamp(change, -radius", "clamp(change, radius", "clipping knows one side"),
    Mutant("quantile", "variance > variance_factor", "variance < variance_factor", "clipping widens the narrow"),
    # risk
    Mutant("risk", "before + mass < alpha", "before < alpha", "VaR one sample too high"),
    Mutant("risk", "inside = torch.minimum(", "inside = torch.maximum(", "atoms outside the tail count"),
    Mutant("risk", "moment = -_gaussian", "moment = _gaussian", "first moment with the wrong sign"),
    Mutant("risk", "(nu - x).clamp_min(0.0)", "(nu - x).clamp_max(0.0)", "gains are charged, losses are not"),
    Mutant("risk", "alpha) - nu + limit", "alpha) + nu + limit", "the charge adds ν"),
    Mutant("risk", "/ (1.0 + multiplier)", "/ (1.0 - multiplier)", "Lagrangian at the wrong scale"),
    Mutant("risk", "(smoothed[0] - smoothed[-1])", "(smoothed[0] + smoothed[-1])", "D answers the level, not the change"),
    Mutant("risk", "& (violation > 0)", "& (violation < 0)", "wind-up at the cap"),
    # atoms
    Mutant("categorical", "probs * (1 - upper_share)", "probs * (1 + upper_share)", "projection makes mass"),
    Mutant("categorical", "atoms.clamp(support[0]", "atoms.clamp(support[1]", "the lowest atom stays empty"),
    Mutant("categorical", "logits.log_softmax(-1)).sum", "logits.softmax(-1)).sum", "cross-entropy without the logarithm"),
    Mutant("categorical", "noise, right=True)", "noise, right=False)", "atoms without mass are drawn"),
    # policy
    Mutant("policy", "clamp(ratio, 1.0 - clip", "clamp(ratio, 1.0 + clip", "the ratio is clipped on one side"),
    Mutant("policy", "-torch.minimum(", "-torch.maximum(", "the optimistic surrogate"),
    Mutant("policy", "expm1() - log_ratio", "expm1() + log_ratio", "k3 may be negative"),
    Mutant("policy", "torch.exp(-log_std_q)", "torch.exp(-log_std_p)", "KL measured in the other σ"),
    Mutant("policy", "clamp_max(math.log(max", "clamp_min(math.log(max", "AWR weights from below"),
    # actions
    Mutant("actions", "log_std) - log_slope", "log_std) + log_slope", "change of variables with the wrong sign"),
    Mutant("actions", "standard.square() - log_std", "standard.square() + log_std", "density grows with σ"),
    Mutant("actions", "logsigmoid(-2 * raw)", "logsigmoid(-1 * raw)", "the slope of another squash"),
    Mutant("actions", "math.log(4.0)", "math.log(2.0)", "the slope of tanh by a factor"),
    # moments
    Mutant("laws", "(at - z[lower]) / (z[lower + 1]", "(z[lower + 1] - at) / (z[lower + 1]", "interpolation runs backwards"),
    Mutant("laws", "(share - 0.5)", "(share + 0.5)", "atoms lie at the end of their cells"),
    Mutant("laws", "+ 0.5 * (x[..., None] == thresholds)", "+ 1.0 * (x[..., None] == thresholds)", "ties lie below"),
    Mutant("laws", "(edges[-1] / masses.double())", "(edges[-1] * masses.double())", "areas of cells are not divided by mass"),
    Mutant("moments", "(1 - share) * gap", "(1 + share) * gap", "merged variance too large"),
    Mutant("moments", "b.weight / torch.where", "a.weight / torch.where", "merging by the wrong count"),
    Mutant("moments", "(old.mean - new.mean)", "(old.mean + new.mean)", "PopArt shifts by the sum"),
)


class Outcome(NamedTuple):
    """What the tests made of one fault."""

    verdict: str  # caught | survived | broken
    detail: str


def main() -> int:
    """Run the table, or a survey."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--survey", type=int, metavar="N", help="try N random faults and list the survivors")
    parser.add_argument("--seed", type=int, default=0, help="which random faults (default 0)")
    options = parser.parse_args()
    if options.survey:
        return survey(ROOT, options.survey, options.seed)
    return run_table(ROOT, TABLE)


# --- the table -------------------------------------------------------------------------------------------------------


def run_table(root: Path, table: Sequence[Mutant]) -> int:
    """0 if the tests catch every fault of the table."""
    if stale := mismatches(root, table):
        print("\n".join(stale))
        return 1
    suites = sorted({path for mutant in table for path in tests_of(mutant.module)})
    sound = trial(root, None, suites)
    if sound.verdict != "survived":
        print(f"the tests are not green without any fault: {sound.detail}")
        return 1
    width = max(len(mutant.says) for mutant in table)
    caught = 0
    with ThreadPoolExecutor(WORKERS) as pool:
        for mutant, outcome in zip(table, pool.map(partial(try_mutant, root), table), strict=True):
            caught += outcome.verdict == "caught"
            line = f"{outcome.verdict:<8}  {mutant.module:<11}  {mutant.says:<{width}}  {outcome.detail}"
            print(line.rstrip(), flush=True)
    print(f"\ncaught {caught} of {len(table)}")
    return int(caught < len(table))


def mismatches(root: Path, table: Sequence[Mutant]) -> list[str]:
    """Entries whose original text no longer stands in the source exactly once."""
    counts = [(mutant, source_of(root, mutant).count(mutant.original)) for mutant in table]
    return [
        f"{mutant.module}.py holds {mutant.original!r} {count} times, not once; mend the table: {mutant.says}"
        for mutant, count in counts
        if count != 1
    ]


def source_of(root: Path, mutant: Mutant) -> str:
    """The text of the module that the fault is made in."""
    return (root / MATHS / f"{mutant.module}.py").read_text(encoding="utf-8")


def tests_of(module: str) -> list[str]:
    """The tests that ought to notice a fault in a module."""
    return [f"tests/functional/test_{name}.py" for name in SUITES.get(module, (module,))]


def try_mutant(root: Path, mutant: Mutant) -> Outcome:
    """Apply one entry of the table and run its tests."""
    text = source_of(root, mutant).replace(mutant.original, mutant.fault)
    return trial(root, (f"{MATHS}/{mutant.module}.py", text), tests_of(mutant.module))


# --- one trial -------------------------------------------------------------------------------------------------------


def trial(root: Path, change: tuple[str, str] | None, suites: Sequence[str]) -> Outcome:
    """Run tests on a copy of the tree in which one file has another text."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = Path(folder)
        for name in ("src", "tests"):
            shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(root / "pyproject.toml", copy)
        if change:
            (copy / change[0]).write_text(change[1], encoding="utf-8")
        # no bytecode: a fault of the same length, written within the same second, would pass for the old text
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        return judge(copy, environment, suites)


def judge(copy: Path, environment: dict[str, str], suites: Sequence[str]) -> Outcome:
    """Make sure that the copy is what runs, then read pytest's verdict."""
    python = partial(subprocess.run, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    try:
        where = python([sys.executable, "-c", "import quantail; print(quantail.__file__)"])
        if not where.stdout.startswith(str(copy)):
            return Outcome("broken", f"imports {where.stdout.strip() or 'nothing'} instead of the copy")
        answer = python([sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *suites])
    except subprocess.TimeoutExpired:
        return Outcome("broken", f"no end after {TIMEOUT_SECONDS} s")
    return verdict(answer.returncode, answer.stdout)


def verdict(code: int, output: str) -> Outcome:
    """Caught only if pytest exits 1 because a test failed: an error outside the tests proves nothing."""
    failures = re.findall(r"^FAILED (.+?)(?: - |$)", output, re.MULTILINE)
    if code == 1 and failures:
        return Outcome("caught", failures[0].rpartition("::")[2])
    if code == 0:
        return Outcome("survived", "")
    return Outcome("broken", f"pytest exits {code}: {output.strip().splitlines()[-1] if output.strip() else 'no output'}")


# --- the survey ------------------------------------------------------------------------------------------------------


class Edit(NamedTuple):
    """Bytes [start, end) of a file become other bytes."""

    start: int
    end: int
    new: bytes


SWAPS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.BitAnd: ("&", "|"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
OPPOSITES = {"min": "max", "amin": "amax", "minimum": "maximum", "argmin": "argmax", "floor": "ceil"}
OPPOSITES |= {new: old for old, new in OPPOSITES.items()}


def survey(root: Path, count: int, seed: int) -> int:
    """Random faults; prints those that no test of functional/ notices. Some change nothing: that is for the reader."""
    drawn = random.Random(seed).sample(every := sorted(all_edits(root)), min(count, len(every)))
    verdicts = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for (path, edit), outcome in zip(drawn, pool.map(lambda item: try_edit(root, *item), drawn), strict=True):
            verdicts.append(outcome.verdict)
            if outcome.verdict != "caught":
                print(f"{outcome.verdict:<8}  {describe(root, path, edit)}  {outcome.detail}".rstrip(), flush=True)
    tally = Counter(verdicts)
    print(f"\n{len(drawn)} of {len(every)} possible faults, seed {seed}: " + ", ".join(f"{n} {v}" for v, n in tally.items()))
    return 0


def all_edits(root: Path) -> Iterator[tuple[str, Edit]]:
    """Every one-token fault in functional/."""
    for path in sorted((root / MATHS).glob("*.py")):
        for edit in edits(path.read_bytes()):
            yield str(path.relative_to(root)), edit


def try_edit(root: Path, path: str, edit: Edit) -> Outcome:
    """The tests of the module first, which mostly settle it; all tests of functional/ if those are silent."""
    text = apply((root / path).read_bytes(), edit).decode()
    narrow = [test for test in tests_of(Path(path).stem) if (root / test).exists()]
    first = trial(root, (path, text), narrow) if narrow else Outcome("survived", "")
    return trial(root, (path, text), ["tests/functional"]) if first.verdict == "survived" else first


def describe(root: Path, path: str, edit: Edit) -> str:
    """file:line  old -> new  in: the line."""
    source = (root / path).read_bytes()
    number = source.count(b"\n", 0, edit.start) + 1
    line = source.splitlines()[number - 1].decode().strip()
    old = source[edit.start : edit.end].decode()
    return f"{path}:{number}  {old!r} -> {edit.new.decode()!r}  in: {line}"


def apply(source: bytes, edit: Edit) -> bytes:
    """The file with the fault in it."""
    return source[: edit.start] + edit.new + source[edit.end :]


def edits(source: bytes) -> Iterator[Edit]:
    """The one-token faults of a module; docstrings, error messages and annotations are left alone."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def begin(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr) -> int:
        return starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Edit]:
        old, new = SWAPS.get(type(operator), ("", ""))
        gap = source[end(left) : begin(right)]
        if old and (at := gap.find(old.encode())) >= 0:
            yield Edit(end(left) + at, end(left) + at + len(old), new.encode())

    for node in code_nodes(ast.parse(source)):
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, right, operator in zip(operands, node.comparators, node.ops, strict=False):
                    yield from between(left, right, operator)
            case ast.BinOp():
                yield from between(node.left, node.right, node.op)
            case ast.BoolOp():
                yield from between(node.values[0], node.values[1], node.op)
            case ast.UnaryOp(op=ast.USub() | ast.Invert() | ast.Not()):
                yield Edit(begin(node), begin(node) + (3 if isinstance(node.op, ast.Not) else 1), b"")
            case ast.Constant(value=bool() | int() | float() as value) if value in (0, 1):
                new = not value if isinstance(value, bool) else 1 - value
                yield Edit(begin(node), end(node), str(new).encode())
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in OPPOSITES:
                yield Edit(end(node) - len(name), end(node), OPPOSITES[name].encode())


def code_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute: no annotations, no f-strings, nothing inside `raise`."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.JoinedStr):
                yield child
                yield from code_nodes(child)


if __name__ == "__main__":
    sys.exit(main())
