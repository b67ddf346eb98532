"""Attacks on a broker, with an innocent client beside them."""
