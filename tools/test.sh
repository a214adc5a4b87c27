#!/usr/bin/env bash
# Sets up .venv and the data that tests need, if that is still to be done, and runs
# the linter and all tests; arguments are passed on to pytest.
set -euo pipefail
source "$(dirname "$0")/setup.sh"
set_up ".[test]"

images=/usr/share/datasets/fashion-mnist
if [ ! -d "$images" ]; then
  echo "Installing Debian's dataset-fashion-mnist, which tests read." >&2
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  if command -v apt-get >/dev/null; then
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq dataset-fashion-mnist >/dev/null
  else
    echo "There is no apt-get here: put the four IDX files into $images." >&2
    exit 2
  fi
fi

.venv/bin/ruff check .
.venv/bin/ruff format --check .
if [ $# -gt 0 ]; then
  exec .venv/bin/python -m pytest "$@"
fi
# Unit tests share the cores, and two files of promises do; what watches the clock
# has them alone.
.venv/bin/python -m pytest tests/unit --numprocesses=auto
.venv/bin/python -m pytest tests/conformance --numprocesses=2 --dist=loadfile --durations=10
exec .venv/bin/python -m pytest tests/cluster --durations=15
