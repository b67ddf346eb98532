"""SASL, a client's side: which mechanism, with whose credentials, read from a configuration."""

from headrace.net.sasl.configured import sasl_security

__all__ = ["sasl_security"]
