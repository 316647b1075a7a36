"""The errors a user can meet. Each says what was seen, what is needed and what to do next, in one sentence or two."""


class QuantailError(Exception):
    """The base of every error this library raises on purpose: catch it to catch them all."""


class ConfigError(QuantailError, ValueError):
    """A setting that makes no sense, refused when the configuration is built."""


class InputError(QuantailError, ValueError):
    """An argument whose type, shape, range or content cannot be used."""


class TrainingError(QuantailError, RuntimeError):
    """Training cannot go on; what was good is kept."""


class CheckpointError(QuantailError, RuntimeError):
    """A file that cannot be written or used as a checkpoint; what was good before is untouched."""


class RunError(QuantailError, RuntimeError):
    """A folder that cannot hold this run, or holds none."""


class EnvironmentFault(QuantailError, RuntimeError):
    """An environment from outside failed while it worked; the message names it."""


class SourceError(QuantailError, RuntimeError):
    """A source of data outside did not give what was asked for; what was fetched so far is kept."""
