"""The command line: exit codes, one sentence on stderr, and no surprises on stdout."""

import json
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import quantail
from monitor.reports import report
from quantail import cli, presets
from quantail.monitor import install
from quantail.monitor.install import Check
from quantail.monitor.sinks import JsonlSink

OUTCOME = SimpleNamespace(status="finished", folder="x", iteration=1, env_steps=1, judged=SimpleNamespace(best=None))
GOOD = Check("gravity", True, "9.81", "")
BAD = Check("entropy", False, "falls", "to rise")


def test_help_lists_every_verb(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, verb in cli.VERBS.items():
        assert f"  {name}" in out
        assert verb.summary in out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"quantail {quantail.__version__}\n"


def test_no_verb_shows_the_help_and_fails(capsys):
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == cli.usage()


@pytest.mark.parametrize(("word", "hint"), [("doctro", "did you mean 'doctor'?"), ("zzz", "the verbs are train, resume, ")])
def test_unknown_verb_gets_a_hint(word, hint, capsys):
    assert cli.main([word]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"quantail: {word!r} is no verb of quantail; {hint}")


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([name, "--help"])
    assert stop.value.code == 0
    assert f"quantail {name}" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("tr", "train"), ("train --pre", "--preset"), ("train --net.mem", "--net.memory"), ("runs --j", "--json")],
)
def test_a_shell_completes_verbs_and_options(typed, completed, tmp_path, capsys):
    assert cli.main(["--completion", "bash"]) == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    words = ["quantail", *typed.split()]
    line = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _tyro_quantail; echo ${{COMPREPLY[@]}}"
    program = f"source {tmp_path}/completion && {line}"
    assert subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split() == [completed]


def test_only_shells_that_can_are_completed(capsys):
    assert cli.main(["--completion", "zsh"]) == 0
    assert "#compdef quantail" in capsys.readouterr().out
    assert cli.main(["--completion", "fish"]) == 2
    assert "needs one of bash, zsh" in capsys.readouterr().err


def test_unknown_option_fails():
    with pytest.raises(SystemExit) as stop:
        cli.main(["doctor", "--no-such-option"])
    assert stop.value.code == 2


def test_arguments_default_to_those_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quantail", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out.startswith("quantail ")


@pytest.mark.parametrize(
    ("checks", "code", "verdict"), [([GOOD, BAD], 1, "1 of 2 checks failed"), ([GOOD], 0, "all 1 checks passed")]
)
def test_doctor_exits_with_its_verdict(checks, code, verdict, monkeypatch, capsys):
    monkeypatch.setattr(install, "examine", lambda: checks)
    assert cli.main(["doctor"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == verdict


def test_table_is_aligned(monkeypatch, capsys):
    monkeypatch.setattr(install, "examine", lambda: [GOOD, BAD, Check("ok", True, "1", "2")])
    cli.main(["doctor"])
    expected = ["ok      gravity  9.81", "FAILED  entropy  falls (needs to rise)", "ok      ok       1 (needs 2)"]
    assert capsys.readouterr().out.splitlines()[:3] == expected


def test_doctor_in_json(monkeypatch, capsys):
    monkeypatch.setattr(install, "examine", lambda: [GOOD, BAD])
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"name": "gravity", "ok": True, "seen": "9.81", "needed": ""},
        {"name": "entropy", "ok": False, "seen": "falls", "needed": "to rise"},
    ]


def log_of(folder, count, **bad):
    """The log of a run whose last figures are bad."""
    sink = JsonlSink(folder / "metrics.jsonl")
    for i in range(count):
        sink(report(i, rollout__ep_rew_mean=1.0, **(bad if i > 3 else {})))
    sink.close()


def test_doctor_of_a_run_that_is_all_right(tmp_path, capsys):
    log_of(tmp_path, 6)
    assert cli.main(["doctor", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "6 iterations, 600 environment steps: nothing is wrong\n"


def test_doctor_of_a_run_that_is_broken(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    log_of(tmp_path, 9, optim__grad_norm=0.0, train__clip_fraction=0.75)
    assert cli.main(["doctor", str(tmp_path / "metrics.jsonl")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("1 broken, 1 warning, 0 note")
    assert [line for line in lines if line.startswith(("broken:", "warning:"))] == [
        "broken: no gradient: the gradient's norm is 0 (5 iterations, since step 500, last at step 900)",
        "warning: clipped policy: 75% of the rows are clipped (5 iterations, since step 500, last at step 900)",
    ]
    assert cli.main(["doctor", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["gravity"], one["since"], one["now"]) for one in found] == [
        ("no gradient", "broken", 500, True),
        ("clipped policy", "warning", 500, True),
    ]


def test_doctor_warns_without_failing(tmp_path, capsys):
    log_of(tmp_path, 9, train__clip_fraction=0.75)
    assert cli.main(["doctor", str(tmp_path)]) == 0
    assert "clipped policy" in capsys.readouterr().out


def test_doctor_of_no_run_is_one_sentence(tmp_path, capsys):
    assert cli.main(["doctor", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"quantail doctor: {tmp_path}/metrics.jsonl is not there")
    log_of(tmp_path, 0)
    assert cli.main(["doctor", str(tmp_path)]) == 2
    assert "metrics.jsonl holds no iteration yet" in capsys.readouterr().err


def test_error_of_ours_is_one_sentence(monkeypatch, capsys):
    def refuse():
        raise quantail.ConfigError("markets=3 does not split into minibatches=2")

    monkeypatch.setattr(install, "examine", refuse)
    assert cli.main(["doctor"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "quantail doctor: markets=3 does not split into minibatches=2\n"


def test_other_errors_keep_their_traceback(monkeypatch):
    def crash():
        raise ZeroDivisionError

    monkeypatch.setattr(install, "examine", crash)
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["nonsense"], 2)])
def test_module_runs_as_a_program(words, code):
    answer = subprocess.run([sys.executable, "-m", "quantail", *words], capture_output=True, text=True, check=False)
    assert answer.returncode == code
    assert "Traceback" not in answer.stderr


# --- train ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--preset quick --env.options.source signal", {"source": "signal"}),
        ("--preset quick --env.options.fee-bps 2 --env.options.costs free", {"fee_bps": 2, "costs": "free"}),
        ("--preset daily --env.options.test 0.5 --env.options.random-position", {"test": 0.5, "random_position": True}),
        ("--env.options costs free seed 3", {"costs": "free", "seed": 3}),
    ],
)
def test_options_of_the_environment_are_added_to_those_of_the_preset(words, options, monkeypatch):
    asked = []
    monkeypatch.setattr("quantail.run.run", lambda config, folder: asked.append(config.env.options) or OUTCOME)
    assert cli.main(["train", *words.split(), "--env", "quantail/Market", "--run", "x"]) == 0
    start = presets.preset(words.split()[1]).env.options if "--preset" in words else {}
    assert asked == [{**start, **options}]


def test_a_stopped_run_exits_with_130_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    words = ["--env", "quantail/CartPole", "--env.num-envs", "2", "--ppo.n-steps", "8", "--run.sinks", "jsonl"]
    words += ["--total-timesteps", "60"]
    folder = tmp_path / "run"
    real = JsonlSink.__call__

    def interrupted(self, given):
        real(self, given)
        if given.iteration == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JsonlSink, "__call__", interrupted)
    assert cli.main(["train", *words, "--run", str(folder)]) == 130
    assert capsys.readouterr().out.endswith(f"in 2 iterations; in {folder}; go on with: quantail resume {folder}\n")
    assert cli.main(["resume", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("finished: ")
