#!/bin/sh
# What Spark runs as its Python: the one in HEADRACE_SPARK_PYTHON. pyspark's own processes by way of daemon.py, which
# starts them sooner; anything else as it is.
python=${HEADRACE_SPARK_PYTHON:-python3}
here=${0%/*}
if [ "$1" = -m ] && [ -f "$here/daemon.py" ]; then
  case "$2" in
    pyspark.*)
      shift
      exec "$python" "$here/daemon.py" "$@"
      ;;
  esac
fi
exec "$python" "$@"
