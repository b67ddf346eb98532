"""What a broker tells Prometheus of itself."""
