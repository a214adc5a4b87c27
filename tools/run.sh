#!/usr/bin/env bash
# Sets up .venv, if that is still to be done, and runs dtrain; arguments are passed
# on. Without arguments: the main job, a local parameter-server cluster.
set -euo pipefail
source "$(dirname "$0")/setup.sh"
set_up .
if [ $# -eq 0 ]; then
  set -- --strategy=ps
fi
exec .venv/bin/python -m dtrain.main "$@"
