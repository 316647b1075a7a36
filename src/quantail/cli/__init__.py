"""The command line: parse, call, print. It decides nothing, and without a verb to run it imports no torch.

A verb is a row of `VERBS`: the function that runs it takes the options as typed parameters, prints the answer and
returns the exit code. 0: fine. 1: the verb ran and its answer is bad. 2: it could not run, and one sentence says why.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple


class Verb(NamedTuple):
    """Where the function lives, and one line for --help."""

    module: str
    function: str
    summary: str
    start: str = ""  # of a verb whose options start from what some of them name: the function that gives them


VERBS = {
    "train": Verb("quantail.cli.train", "train", "train an agent into a folder of its own", "defaults"),
    "resume": Verb("quantail.cli.train", "resume", "go on with a run as if it had never stopped"),
    "evaluate": Verb("quantail.cli.runs", "evaluate", "play with a saved agent, which learns nothing from it"),
    "export": Verb("quantail.cli.export", "export", "write a saved agent as an ONNX graph, its memory in and out"),
    "report": Verb("quantail.cli.report", "report", "judge a run's agent on held-out bars, and write down the verdict"),
    "runs": Verb("quantail.cli.runs", "runs", "list and compare the runs below a folder"),
    "check": Verb("quantail.cli.check", "check", "look for leaks in bars, features and rules, and see that the money adds up"),
    "data": Verb("quantail.cli.data", "data", "fetch bars, list samples, judge a file"),
    "bench": Verb("quantail.cli.bench", "bench", "say how fast training is on this machine, phase by phase"),
    "doctor": Verb("quantail.cli.doctor", "doctor", "say what is wrong with a run, or whether this installation is healthy"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    match words[:1]:
        case ["--version"]:
            from quantail import __version__

            print(f"quantail {__version__}")
            return 0
        case ["-h" | "--help"]:
            print(usage())
            return 0
        case []:
            print(usage(), file=sys.stderr)
            return 2
        case ["--completion"]:
            return completion(words[1:])
        case [verb] if verb in VERBS:
            return call(verb, words[1:])
    return unknown(words[0])


def usage() -> str:
    """The help page, from the table alone."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    return (
        "usage: quantail [--help] [--version] [--completion SHELL] VERB ...\n\n"
        "Trading agents that learn the whole distribution of their returns and keep a tail-risk limit.\n\n"
        f"verbs:\n{verbs}\n\n"
        "Each verb explains its options: quantail VERB --help"
    )


def unknown(verb: str) -> int:
    """Say which word was meant, if one is close."""
    from difflib import get_close_matches

    close = get_close_matches(verb, VERBS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the verbs are {', '.join(VERBS)}."
    print(f"quantail: {verb!r} is no verb of quantail; {hint} Try quantail --help", file=sys.stderr)
    return 2


def call(name: str, words: Sequence[str]) -> int:
    """Let the verb parse its options, then run it; an error raised on purpose becomes one sentence."""
    from quantail.errors import QuantailError

    try:
        return int(parsed(name, words))
    except QuantailError as error:
        print(f"quantail {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"quantail {name}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stdout = None
        return 0


def parsed(name: str, words: Sequence[str]) -> Any:
    """What the verb's function gives for these options."""
    import tyro

    verb = VERBS[name]
    asked: dict[str, Any] = {"args": words, "prog": f"quantail {name}", "config": (tyro.conf.FlagCreatePairsOff,)}
    function = looked_up(verb.module, verb.function)
    if not verb.start:
        return tyro.cli(function, **asked)
    start = looked_up(verb.module, verb.start)(words)
    return function(tyro.cli(type(start), default=start, **asked))


def options_of(verb: Verb) -> Any:
    """What has the verb's options: its function, or the record that it takes."""
    return type(looked_up(verb.module, verb.start)(())) if verb.start else looked_up(verb.module, verb.function)


def looked_up(module: str, name: str) -> Any:
    """A function of a module that is only imported now."""
    from importlib import import_module

    return getattr(import_module(module), name)


def completion(words: Sequence[str]) -> int:
    """Print what a shell needs to complete verbs and options."""
    shells = ("bash", "zsh")
    if len(words) != 1 or words[0] not in shells:
        print(f"quantail: --completion needs one of {', '.join(shells)}; e.g. quantail --completion bash", file=sys.stderr)
        return 2
    import tyro
    from tyro.extras import subcommand_cli_from_dict

    with suppress(SystemExit):  # which is how it ends when it has printed
        subcommand_cli_from_dict(
            {name: options_of(verb) for name, verb in VERBS.items()},
            prog="quantail",
            config=(tyro.conf.FlagCreatePairsOff,),
            args=["--tyro-print-completion", words[0]],
        )
    return 0
