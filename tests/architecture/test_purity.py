"""The mathematics holds no state and explains itself; nowhere is anything remembered behind the reader's back."""

import pytest

from architecture import rules

PACKAGE = rules.modules()
MATHS = rules.modules("quantail.functional")

# Argument checks are not mathematics: they have no formula to cite.
WITHOUT_FORMULA = ("quantail.functional.checks",)


def test_the_modules_were_found():
    assert len(MATHS) >= 7
    assert sum(len(rules.public_functions(source)) for source in MATHS.values()) >= 20


@pytest.mark.parametrize("name", MATHS)
def test_functional_holds_no_state(name):
    assert rules.state(MATHS[name]) == []


@pytest.mark.parametrize("name", [name for name in MATHS if name not in WITHOUT_FORMULA])
def test_public_functions_give_formula_source_and_shapes(name):
    assert rules.undocumented(MATHS[name]) == []


@pytest.mark.parametrize("name", PACKAGE)
def test_nothing_is_remembered_behind_the_back(name):
    assert rules.remembered_names(PACKAGE[name]) == []


# --- each rule sees its violation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "cache = {}",
        "CACHE = {}",
        "LEVELS = [0.1, 0.2]",
        "LEVELS = torch.tensor([0.1])",
        "COUNT: int",
        "counter = 0",
        "torch.set_num_threads(1)",
        "for i in range(3):\n    pass",
        "if torch.cuda.is_available():\n    import triton",
        "class Running:\n    pass",
        "@dataclass\nclass Running:\n    mean: float",
        "@dataclass(frozen=False)\nclass Running:\n    mean: float",
        "class R(NamedTuple):\n    def f(self):\n        self.x = 1",
        "class R(NamedTuple):\n    def f(self):\n        object.__setattr__(self, 'x', 1)",
        "def f(x):\n    global count\n    count = 1",
        "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n = n + 1",
        "def f(x, seen=[]):\n    return x",
        "def f(x, *, seen={}):\n    return x",
        "def f(x, seen=list()):\n    return x",
        "def f(x):\n    f.calls = 1",
        "def f(x):\n    f.calls += 1",
        "@functools.cache\ndef f(n):\n    return n",
        "@lru_cache(maxsize=None)\ndef f(n):\n    return n",
        "def f(n):\n    return torch.rand(n)",
        "def f(n):\n    return torch.randn_like(n)",
        "def f(n):\n    return n.normal_()",
        "def f(n):\n    return torch.bernoulli(n)",
        "def f(n):\n    return torch.multinomial(n, 1)",
        "def f(n):\n    return torch.Generator()",
        "def f(n):\n    return F.dropout(n)",
        "def f(n):\n    print(n)",
        "from torch.distributions import Normal",
        "from torch import distributions\nimport torch.distributions",
        "import random",
    ],
)
def test_state_is_seen(source):
    assert len(rules.state(source)) >= 1


def test_stateless_module_passes():
    source = '''
"""What a module of mathematics looks like."""
import math
from typing import TYPE_CHECKING, Literal, NamedTuple
if TYPE_CHECKING:
    from quantail.types import Law
EPS = 2.0**-23
LOG_2PI = math.log(2 * math.pi)
MODES = ("off", "mean_only")
SMALLEST = torch.finfo(torch.float64).tiny
Mode = Literal["off", "mean_only"]
__all__ = ["f"]
class Rows(NamedTuple):
    n: int
    def twice(self):
        return 2 * self.n
@dataclass(frozen=True)
class Point:
    x: float = 0.0
def f(x, mode="off", shape=(), *, device=None):
    out = torch.empty_like(x)
    out[0] = x[0]
    return out
'''
    assert rules.state(source) == []


GOOD = '''
def f(x):
    """Mean of the worst α of a sample: CVaR_α = 1/α ∫₀^α F⁻¹(u) du   (Rockafellar & Uryasev 2000).

    x [..., n] any order -> [...].
    """
'''


@pytest.mark.parametrize(
    ("old", "new", "lacks"),
    [
        ("CVaR_α = 1/α ∫₀^α F⁻¹(u) du", "CVaR", "a formula"),
        ("(Rockafellar & Uryasev 2000)", "", "its source"),
        ("(Rockafellar & Uryasev 2000)", "(folklore since 2000)", "its source"),
        ("x [..., n] any order -> [...].", "", "shapes"),
        ("x [..., n] any order -> [...].", ">>> f(x)[0] -> [1]", "shapes"),
        ("CVaR_α = 1/α ∫₀^α F⁻¹(u) du", "CVaR\n\n    >>> y = f(x)\n", "a formula"),
    ],
)
def test_missing_part_of_a_docstring_is_seen(old, new, lacks):
    assert rules.undocumented(GOOD) == []
    assert old in GOOD
    bad = rules.undocumented(GOOD.replace(old, new))
    assert len(bad) == 1
    assert lacks in bad[0]


def test_docstrings_are_asked_of_public_functions_only():
    assert len(rules.undocumented("def f(x):\n    return x")) == 1
    assert rules.undocumented("def _f(x):\n    return x\nclass C:\n    def f(self): ...") == []


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self):\n        self._last_obs = 1",
        "def f(agent):\n    return agent._last_obs",
        "_last_state = None",
        "def f(_last_state):\n    pass",
        "def _last_state():\n    pass",
        "f(_last_state=1)",
        "class A:\n    def f(self):\n        return getattr(self, 'x', None)",
        "class A:\n    def f(self):\n        return hasattr(self, 'x')",
    ],
)
def test_hidden_memory_is_seen(source):
    assert len(rules.remembered_names(source)) == 1


def test_ordinary_names_pass():
    assert rules.remembered_names("last = 1\ndef f(x):\n    return getattr(x, 'last_hidden'), x.at_last_") == []
