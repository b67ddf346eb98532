"""A secured Apache Kafka (TLS, SASL), and every client of ours on it."""
