"""Which version this is."""


def version() -> str:
    """The installed version; run from a source tree that is not installed, pyproject's own followed by +source."""
    from importlib import metadata

    try:
        return metadata.version("quantail")
    except metadata.PackageNotFoundError:
        return _source_version()


def _source_version() -> str:
    import tomllib
    from pathlib import Path

    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    if not pyproject.is_file():
        return "0+unknown"
    return f"{tomllib.loads(pyproject.read_text(encoding='utf-8'))['project']['version']}+source"
