#!/bin/sh
# Where an image needs a shell before the training: the last line replaces the shell, which would keep SIGTERM to itself.
#   command: ["/bin/sh", "entrypoint.sh", "python", "train.py"]
set -eu

mkdir -p "${UNBROKEN_ROOT:-runs}"

exec "$@"
