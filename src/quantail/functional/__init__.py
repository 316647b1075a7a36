"""The mathematics: pure functions of tensors. No state, no files, no random numbers; noise comes in as tensors."""

from quantail.functional import actions, categorical, laws, moments, policy, quantile, returns, risk
from quantail.functional.checks import check_finite

__all__ = ["actions", "categorical", "check_finite", "laws", "moments", "policy", "quantile", "returns", "risk"]
