"""The audit log: what was refused, and what was changed, by whom."""
