"""Small enough to hold in the head. Going over is a talk: an entry in the table, with its reason."""

import pytest

from architecture import rules

MODULE_LINES = 300
FUNCTION_LINES = 40
PARAMETERS = 10

# (module, function, or "" for the module itself) -> why it may be larger.
ALLOWED = {
    ("quantail.algorithm", "__init__"): "the keywords of RecurrentPPO, by which scripts call it",
    ("quantail.functional.returns", "vtrace"): "the eight of gae, and the importance ratio with its two bounds",
}

# A kernel takes its tensors as pointers, one by one, and holds a whole pass: a call would hide what it keeps.
DEVICE = (300, 80, 28)
DEVICE_MODULES = rules.modules("quantail.kernels.gpu.device")
PACKAGE = {name: source for name, source in rules.modules().items() if name not in DEVICE_MODULES}


def test_the_package_was_found():
    assert sum(len(rules.functions(source)) for source in PACKAGE.values()) >= 20


@pytest.mark.parametrize("name", PACKAGE)
def test_size(name):
    over = rules.oversize(PACKAGE[name], MODULE_LINES, FUNCTION_LINES, PARAMETERS)
    assert [sentence for what, sentence in over if (name, what) not in ALLOWED] == []


@pytest.mark.parametrize("name", DEVICE_MODULES)
def test_size_of_what_runs_on_a_gpu(name):
    assert rules.oversize(DEVICE_MODULES[name], *DEVICE) == []


def test_every_exception_is_still_needed():
    over = {
        (name, what)
        for name, source in PACKAGE.items()
        for what, _ in rules.oversize(source, MODULE_LINES, FUNCTION_LINES, PARAMETERS)
    }
    assert set(ALLOWED) <= over


LONG = "def f(x):\n    '''Says\n    something.'''\n\n    # why\n    y = (\n        x\n    )\n    return y\n"


def test_code_lines_leave_out_words_and_air():
    assert rules.code_lines(LONG) == {1, 6, 7, 8, 9}


@pytest.mark.parametrize(("limits", "what"), [((8, 40, 10), ""), ((300, 4, 10), "f"), ((300, 40, 0), "f")])
def test_oversize_is_seen(limits, what):
    assert rules.oversize(LONG, 9, 5, 1) == []
    assert [name for name, _ in rules.oversize(LONG, *limits)] == [what]
