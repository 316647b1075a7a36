"""Where a run's numbers come from: versions, machine, threads, and the state of the code around it."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from quantail.version import version

PACKAGES = ("torch", "numpy", "safetensors", "gymnasium", "stable-baselines3", "sb3-contrib", "pandas", "tensorboard")


def environment() -> dict[str, Any]:
    """All that may be the reason why another machine gives other numbers."""
    return {
        "quantail": version(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := installed(name))},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or ["cpu"],
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "command": sys.argv,
        "git": git_state(Path.cwd()),
    }


def installed(name: str) -> str | None:
    """The version of a package, if it is there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether files differ from it; nothing where there is no repository, or no git."""

    def ask(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed_files": len(ask("status", "--porcelain").splitlines())}
    except (OSError, subprocess.SubprocessError):
        return None
