#!/bin/sh
# Run tools/install.py with a Python that is new enough; PYTHON=... chooses one.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
tried=''
for python in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
  version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || version=''
  if [ -n "$version" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    exec "$python" "$root/tools/install.py" "$@"
  fi
  tried="$tried${tried:+, }$python is ${version:-not found}"
  if [ -n "${PYTHON:-}" ]; then break; fi
done
echo "error: nncdbg needs Python 3.11 or newer: $tried" >&2
echo "hint: install one (https://www.python.org/downloads), then run PYTHON=/path/to/python3.12 ./demo" >&2
exit 1
