"""Clients that we did not write find nothing amiss with the broker (SPEC 0.2)."""
