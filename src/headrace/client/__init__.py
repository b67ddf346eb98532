"""Who asks? `producer/`, `consumer/`, `transactions/`, `admin/` and `ranges`, over `cluster/` and net's connections.

What users import is in `headrace` and `headrace.aio`. Modules that begin with an underscore are their package's own.
"""
