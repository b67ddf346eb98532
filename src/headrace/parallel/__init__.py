"""Consuming in parallel: four models, three orders, retries and dead letters."""
