"""A run and its folder: settings, logs, evaluation, checkpoints, Ctrl-C, resume.

outcome = quantail.run(config, "runs/mine")     # this module is callable: it is the function `run`
outcome = quantail.resume("runs/mine")          # as if it had never stopped
"""

import sys
from types import ModuleType

from quantail.run.session import resume, run
from quantail.run.together import Outcome

__all__ = ["Outcome", "resume", "run"]


class _Run(ModuleType):
    """Once it is imported, `quantail.run` is this module; so it answers a call as the function would."""

    __call__ = staticmethod(run)


sys.modules[__name__].__class__ = _Run
