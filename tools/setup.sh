# Sourced by run.sh and test.sh: makes .venv and installs dtrain into it, once.
# A second call installs nothing, as long as setup.cfg and Python stay the same.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

set_up() { # $1: what to install, for instance ".[test]"
  local python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "dtrain needs Python 3.10 or newer, but $python is $("$python" --version 2>&1)." \
      "Set PYTHON=/path/to/a/newer/python." >&2
    exit 2
  }
  local wanted stamp=.venv/dtrain-installed
  wanted="$1 $("$python" -c 'import sys; print(sys.version)' | tr '\n' ' ')$(cksum <setup.cfg)"
  if [ -f "$stamp" ] && grep -qxF "$wanted" "$stamp"; then
    return
  fi
  echo "Setting up .venv: a few minutes, most of it for TensorFlow." >&2
  if [ ! -x .venv/bin/python ] && ! "$python" -m venv .venv 2>/dev/null; then
    # Debian's Python comes without ensurepip: virtualenv brings its own pip.
    "$python" -m pip install --quiet --target .venv-tool virtualenv
    PYTHONPATH=.venv-tool "$python" -m virtualenv --quiet --clear .venv
    rm -r .venv-tool
  fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable "$1"
  echo "$wanted" >>"$stamp"
}
