"""The examination of an installation: sound here, and it notices when something is broken."""

import pytest
import torch

from quantail.functional import returns, risk
from quantail.monitor import install


def by_name(checks):
    return {check.name: check for check in checks}


def test_this_installation_is_healthy():
    checks = install.examine()
    assert [check for check in checks if not check.ok] == []
    assert {"python", "platform", "torch", "devices", "threads", "loops in C", "default packages"} <= set(by_name(checks))
    assert {f"extra {name}" for name in ("data", "track", "scale", "export")} <= set(by_name(checks))
    assert {"CVaR of N(0,1)", "GAE over a truncation", "float64 on cpu"} <= set(by_name(checks))


def test_old_python_is_a_finding(monkeypatch):
    monkeypatch.setattr(install.sys, "version_info", (3, 10, 9))
    assert not by_name(install.examine())["python"].ok


@pytest.mark.parametrize(("version", "ok"), [("2.7.1", False), ("2.8.0", True), ("2.13.0+cpu", True), ("3.0.0a0+git1", True)])
def test_old_torch_is_a_finding(version, ok, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert by_name(install.examine())["torch"].ok is ok


def test_missing_default_package_is_a_finding_and_missing_extra_is_not(monkeypatch):
    monkeypatch.setattr(install, "DEFAULT", ("numpy", "no_such_package"))
    monkeypatch.setattr(install, "EXTRAS", {"data": ("numpy", "no_such_extra"), "track": ("numpy",)})
    checks = by_name(install.examine())
    assert not checks["default packages"].ok
    assert checks["default packages"].seen == "missing: no_such_package"
    assert checks["extra data"].ok
    assert checks["extra data"].seen == "without no_such_extra (optional: pip install 'quantail[data]')"
    assert checks["extra track"].seen == "all present"


def test_wrong_cvar_is_a_finding(monkeypatch):
    right = risk.cvar_from_quantiles
    monkeypatch.setattr(risk, "cvar_from_quantiles", lambda *arguments: right(*arguments) * (1 + 1e-6))
    check = by_name(install.examine())["CVaR of N(0,1)"]
    assert not check.ok
    assert check.seen == "off by 2.1e-06"


def test_bootstrap_lost_at_a_truncation_is_a_finding(monkeypatch):
    right = returns.gae

    def careless(rewards, values, terminated, truncated, gamma, lam):
        return right(rewards, values, terminated | truncated, truncated & False, gamma, lam)

    monkeypatch.setattr(returns, "gae", careless)
    assert not by_name(install.examine())["GAE over a truncation"].ok


def test_nan_is_a_finding(monkeypatch):
    monkeypatch.setattr(risk, "cvar_from_quantiles", lambda *_: torch.tensor(float("nan")))
    assert not by_name(install.examine())["CVaR of N(0,1)"].ok


def test_crash_is_a_finding(monkeypatch):
    def crash(*_):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(risk, "cvar_from_quantiles", crash)
    check = by_name(install.examine())["CVaR of N(0,1)"]
    assert not check.ok
    assert check.seen == "RuntimeError: no kernel image"


def test_records_are_frozen():
    with pytest.raises(AttributeError):
        install.Check("a", True, "b", "c").ok = False
