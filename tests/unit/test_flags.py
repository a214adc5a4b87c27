"""The command line: flags, flag files, and the files in configs/."""

import dataclasses
import pathlib
import re

import pytest
from absl.testing import flagsaver

from dtrain import errors, flags, version
from dtrain.config import RunConfig

FIELDS = {field.name: field.default for field in dataclasses.fields(RunConfig)}
CONFIGS = pathlib.Path(__file__).parents[2] / "configs"

# Every field, away from its default, with values that are hard on a command line.
EVERYTHING = RunConfig(
    mode="export",
    strategy="sync",
    experiment="my_model:experiment",
    model_dir="/tmp/a folder/with=signs,and 'quotes'",
    data_dir="--data",
    data_sharding="off",
    train_steps=7,
    epochs=2,
    batch_size=3,
    optimizer="adam",
    learning_rate=1e-7,
    learning_rate_schedule="exponential",
    warmup_steps=2,
    decay_steps=5,
    decay_rate=0.5,
    clip_norm=1.5,
    weight_decay=0.0,
    mixed_precision="float16",
    accumulate_steps=5,
    gradient_dtype="bfloat16",
    devices_per_task=37,
    seed=2**31,
    steps_per_loop=11,
    init_checkpoint="weights.keras",
    eval_every=13,
    evaluator=True,
    best_metric="max:hits",
    early_stop_patience=3,
    checkpoint_every=17,
    checkpoint_secs=0.1,
    keep_checkpoints=19,
    keep_checkpoint_every_hours=0.5,
    export_dir="exported",
    summary_every=23,
    log_every=0,
    log_workers=True,
    profile_steps="3,5",
    result_file="Ergebnis für heute.json",
    num_workers=29,
    num_ps=31,
    cluster="flags",
    ps_hosts="[::1]:4000, b:2",
    worker_hosts="c:3,d:4",
    chief_host="e:5",
    job_name="worker",
    task_index=0,
    startup_timeout=1 / 3 + 1,
    heartbeat_timeout=10 / 3,
    chief_timeout=1 / 3 + 1,
    supervise=True,
    max_restarts=3,
    private_network="off",
)


@pytest.fixture(autouse=True)
def fresh_flags():
    """Each test reads flags as a new process would."""
    saved = flagsaver.save_flag_values(flags.FLAGS)
    yield
    flagsaver.restore_flag_values(saved, flags.FLAGS)


def parse(*args):
    return flags.parse(["dtrain", *args])


def message_of(*args):
    with pytest.raises(errors.UsageError) as caught:
        parse(*args)
    return str(caught.value)


def assert_parts(message, parts):
    assert not [part for part in parts if part not in message], message


def names_of_flags():
    defined = {flag.name for flag in flags.FLAGS.flags_by_module_dict()["dtrain.flags"]}
    return defined - {"help", "helpfull", "version"}


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ([], {}),
        (["--strategy=local"], {"strategy": "local"}),
        (["--train_steps", "5"], {"train_steps": 5}),
        (["-seed=5"], {"seed": 5}),
        (["--learning_rate=1"], {"learning_rate": 1.0}),
        (["--checkpoint_secs=2.5"], {"checkpoint_secs": 2.5}),
        (["--accumulate_steps=4"], {"accumulate_steps": 4}),
        (
            ["--strategy=mirrored", "--devices_per_task=2"],
            {"strategy": "mirrored", "devices_per_task": 2},
        ),
        (
            ["--strategy=sync", "--gradient_dtype=bfloat16"],
            {"strategy": "sync", "gradient_dtype": "bfloat16"},
        ),
        (["--ps_hosts=a:1, b:2"], {"ps_hosts": "a:1, b:2"}),
        (["--seed=1", "--seed=2"], {"seed": 2}),
    ],
)
def test_flags_make_a_config(args, options):
    assert parse(*args) == RunConfig(**options)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--stratgy=ps"], ["stratgy", "Did you mean", "strategy", "--help"]),
        (["--worker_host=a:1"], ["worker_host", "worker_hosts", "--help"]),
        (["--train_steps=ten"], ["--train_steps=ten", "--help"]),
        (["--train_steps=1.5"], ["--train_steps=1.5", "--help"]),
        (["--train_steps="], ["--train_steps", "--help"]),
        (["--learning_rate=fast"], ["--learning_rate=fast", "--help"]),
        (["--seed"], ["seed", "--help"]),
        (["--train_steps=0"], ["--train_steps=0", "Give 1 or more"]),
        (["--strategy=pss"], ["--strategy=pss", "Did you mean ps?"]),
        (["--gradient_dtype=bf16"], ["--gradient_dtype=bf16", "float32, bfloat16"]),
        (["--accumulate_steps=two"], ["--accumulate_steps=two", "--help"]),
        (["--devices_per_task=2"], ["--devices_per_task=2", "--strategy=ps"]),
        (["train"], ['Leftover argument "train"', "--name=value"]),
        (["--", "a", "b"], ['Leftover arguments "a", "b"']),
        (["--ps_hosts=a:1,", "b:2"], ['"b:2"', '--ps_hosts="a:1, b:2"']),
        (["--flagfile=/no/such/file"], ["/no/such/file", "No such file"]),
    ],
    ids=" ".join,
)
def test_a_bad_command_line_says_what_is_wrong(args, parts):
    assert_parts(message_of(*args), parts)


def test_a_refused_command_has_status_2():
    with pytest.raises(errors.DtrainError) as caught:
        parse("--nothing")
    assert caught.value.exit_status == 2


def test_help_shows_every_flag_with_its_meaning(capsys):
    assert parse("--help", "--train_steps=ten") is None
    text = capsys.readouterr().out
    assert version.__version__ in text
    for name in names_of_flags():
        # "--name: meaning" and not "--name:" alone.
        assert re.search(rf"--(\[no\])?{name}: \S", text), name
    assert "flagfile" not in text


def test_helpfull_shows_the_flags_of_absl_too(capsys):
    assert parse("--helpfull") is None
    text = capsys.readouterr().out
    assert_parts(text, ["--train_steps", "--flagfile"])


def test_version_is_shown(capsys):
    assert parse("--version") is None
    assert capsys.readouterr().out == f"dtrain {version.__version__}\n"


@pytest.mark.parametrize("flag", ["--nohelp", "--help=false", "--noversion"])
def test_help_that_is_switched_off_is_not_shown(flag, capsys):
    assert parse(flag, "--seed=3") == RunConfig(seed=3)
    assert capsys.readouterr().out == ""


def test_a_later_flag_wins_over_a_flag_file(tmp_path):
    path = tmp_path / "small.flags"
    path.write_text("# A comment.\n\n--train_steps=7\n--batch_size=3\n")
    expected = RunConfig(train_steps=9, batch_size=3)
    assert parse(f"--flagfile={path}", "--train_steps=9") == expected


def test_a_flag_file_wins_over_an_earlier_flag(tmp_path):
    path = tmp_path / "small.flags"
    path.write_text("--train_steps=7\n")
    config = parse("--train_steps=9", f"--flagfile={path}")
    assert config == RunConfig(train_steps=7)


def test_a_typo_in_a_flag_file_is_named(tmp_path):
    path = tmp_path / "small.flags"
    path.write_text("--trainsteps=7\n")
    message = message_of(f"--flagfile={path}")
    assert_parts(message, ["trainsteps", "train_steps"])


def test_every_field_has_a_flag_and_every_flag_a_field():
    assert names_of_flags() == set(FIELDS)


def test_flags_that_are_not_given_have_the_fields_defaults():
    assert parse() == RunConfig()


def test_every_value_survives_the_way_through_flags():
    same = [name for name in FIELDS if getattr(EVERYTHING, name) == FIELDS[name]]
    # It belongs to another schedule.
    assert same == ["decay_boundaries"], "another value than the default is needed"
    assert parse(*EVERYTHING.to_flags()) == EVERYTHING


def test_boundaries_survive_it_too():
    piecewise = RunConfig(
        learning_rate_schedule="piecewise", decay_boundaries="100, 200"
    )
    assert parse(*piecewise.to_flags()) == piecewise


# configs/


def problems_of(path):
    """Lists what is wrong with a flag file of configs/."""
    command, *lines = path.read_text().splitlines() or [""]
    problems = []
    if not command.startswith("# ") or f"--flagfile=configs/{path.name}" not in command:
        problems.append("the first line is no comment with the command that uses it")
    given = [line for line in lines if line.strip() and not line.startswith("#")]
    if any("#" in line for line in given):
        problems.append("a comment after a value is taken as a part of it")
    saved = flagsaver.save_flag_values(flags.FLAGS)
    try:
        config = parse(f"--flagfile={path}")
    except errors.UsageError as error:
        return [*problems, str(error)]
    finally:
        flagsaver.restore_flag_values(saved, flags.FLAGS)
    differing = {flag.split("=")[0] for flag in config.to_flags()}
    names = [re.match(r"--\w+", line)[0] for line in given]
    return problems + [
        f"{name} is given its default" for name in names if name not in differing
    ]


def test_every_config_file_parses_and_holds_only_what_differs():
    found = {path.name: problems_of(path) for path in CONFIGS.glob("*.flags")}
    assert {name: problems for name, problems in found.items() if problems} == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no comment with the command"),
        ("--seed=3\n", "no comment with the command"),
        ("# Small.\n--seed=3\n", "no comment with the command"),
        ("{command}\n--seed=0\n", "--seed is given its default"),
        ("{command}\n--data_dir=a  # data\n", "a comment after a value"),
        ("{command}\n--sed=3\n", "Unknown command line flag 'sed'"),
        ("{command}\n--num_ps=0\n", "--num_ps=0 is too small"),
    ],
)
def test_the_check_of_config_files_finds_problems(text, problem, tmp_path):
    path = tmp_path / "small.flags"
    command = "# python -m dtrain.main --flagfile=configs/small.flags"
    path.write_text(text.format(command=command))
    assert any(problem in found for found in problems_of(path)), problems_of(path)
    path.write_text(f"{command}\n# More.\n\n--seed=3\n--num_ps=2\n")
    assert problems_of(path) == []
