"""Logins, users, TLS and certificates of the broker."""
